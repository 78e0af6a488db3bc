#include "pentatron/trainer/runtime.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/Parallel.h>

#include <algorithm>

#include <sched.h>
#include <unistd.h>

#include <fmt/format.h>

#include "pentatron/base/error.h"
#include "pentatron/comm/nccl.h"
#include "pentatron/kernels/common/build.h"
#include "pentatron/nn/ops/matmul.h"
#include "pentatron/nn/record.h"

namespace pentatron::trainer {

at::ScalarType scalar_type(Precision precision) {
  switch (precision) {
  case Precision::kFp64:
    return at::kDouble;
  case Precision::kFp32:
    return at::kFloat;
  case Precision::kBf16:
    return at::kBFloat16;
  }
  PT_DCHECK(false);
}

namespace {

int num_gpus() {
  const bool usable = kernels::built_with_cuda() && at::hasCUDA();
  return usable ? at::detail::getCUDAHooks().deviceCount() : 0;
}

} // namespace

at::Device choose_device(DeviceKind kind) {
  const int gpus = num_gpus();
  if (kind == DeviceKind::kCuda && gpus == 0) {
    raise<ConfigError>("device=cuda, but {}\n  try: device=cpu",
                       kernels::built_with_cuda() ? "this machine shows no GPU"
                                                  : "this build has no CUDA kernels");
  }
  return gpus > 0 && kind != DeviceKind::kCpu ? at::Device(at::kCUDA, 0) : at::Device(at::kCPU);
}

std::optional<int> choose_gpu(DeviceKind kind, const comm::Launch& launch) {
  if (!choose_device(kind).is_cuda()) return std::nullopt;
  const int gpus = num_gpus();
  if (gpus == 1) return 0; // srun and others show each rank its own
  if (launch.local_size > gpus)
    raise<ConfigError>(
        "{} ranks are on a machine with {} GPUs\n  try: at most as many ranks as GPUs "
        "on each machine, or device=cpu",
        launch.local_size, gpus);
  return launch.local_rank;
}

at::Device rank_device(DeviceKind kind, const comm::Group& world) {
  const at::Device device = choose_device(kind);
  if (!device.is_cuda() || world.size() == 1) return device;
  if (comm::carries_gpu_tensors(world))
    return at::Device(at::kCUDA, at::detail::getCUDAHooks().getCurrentDevice());
  raise<ConfigError>("device={} puts {} ranks on GPUs, and each GPU wants a process of its own\n  "
                     "try: --backend sockets, torchrun, mpirun or srun; or device=cpu",
                     config::to_string(kind), world.size());
}

void set_compute_threads(int64_t num_threads, int local_processes) {
  if (num_threads == 0) {
    cpu_set_t usable;
    CPU_ZERO(&usable);
    num_threads = sched_getaffinity(0, sizeof usable, &usable) == 0 ? CPU_COUNT(&usable) : 1;
    if (num_threads >= ::sysconf(_SC_NPROCESSORS_ONLN)) // not bound
      num_threads = std::max<int64_t>(1, num_threads / local_processes);
  }
  at::set_num_threads(static_cast<int>(num_threads));
}

Peak measure_gemm_peak(Precision precision) {
  constexpr int64_t kSize = 1536;
  const nn::NoAutograd guard;
  const auto options = at::TensorOptions(scalar_type(precision));
  const at::Tensor a = at::ones({kSize, kSize}, options), b = at::ones({kSize, kSize}, options);
  const std::string what =
      fmt::format("{} matrix product {} x {} x {} on {} threads", config::to_string(precision),
                  kSize, kSize, kSize, at::get_num_threads());
  return measure_peak(
      what, [&] { nn::matmul_nt(a, b); }, 2.0 * kSize * kSize * kSize, 0.25);
}

std::optional<Peak> find_peak(const Config& config, at::Device device) {
  if (config.logger.peak_tflops)
    return Peak{*config.logger.peak_tflops * 1e12, "logger.peak_tflops"};
  if (device.is_cpu()) return measure_gemm_peak(config.dtype);
  const Arithmetic arithmetic = config.dtype == Precision::kFp64   ? Arithmetic::kFp64
                                : config.dtype == Precision::kFp32 ? Arithmetic::kFp32
                                                                   : Arithmetic::kBf16;
  return gpu_peak(at::detail::getCUDAHooks().showConfig(), arithmetic);
}

} // namespace pentatron::trainer
