#include "pentatron/trainer/runtime.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <limits>
#include <vector>

#include <sched.h>
#include <unistd.h>

#include <fmt/format.h>

#include "pentatron/base/error.h"
#include "pentatron/base/format.h"
#include "pentatron/base/log.h"
#include "pentatron/base/timed_run.h"
#include "pentatron/comm/gpu_ranks.h"
#include "pentatron/comm/rank_threads.h"
#include "pentatron/kernels/common/build.h"
#include "pentatron/kernels/gemm/gemm.h"
#include "pentatron/nn/memory/counting_allocator.h"
#include "pentatron/nn/ops/kernel_args.h"
#include "pentatron/nn/record.h"
#include "pentatron/trainer/metrics/hardware.h"

namespace pentatron::trainer {

at::ScalarType scalar_type(Precision precision) {
  switch (precision) {
  case Precision::kFp64:
    return at::kDouble;
  case Precision::kFp32:
    return at::kFloat;
  case Precision::kBf16:
    return at::kBFloat16;
  case Precision::kFp16:
    return at::kHalf;
  }
  PT_DCHECK(false);
}

namespace {

int num_gpus() {
  const bool usable = kernels::built_with_cuda() && at::hasCUDA();
  return usable ? at::detail::getCUDAHooks().deviceCount() : 0;
}

/// Whether `pentatron` chose this program and not the one for CUDA, which lies beside it.
bool left_cuda_out() {
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  return std::filesystem::exists(self.parent_path() / "pentatron-torch-cuda", error);
}

} // namespace

at::Device choose_device(DeviceKind kind) {
  const int gpus = num_gpus();
  if (kind == DeviceKind::kCuda && gpus == 0) {
    raise<ConfigError>("device=cuda, but {}\n  try: device=cpu",
                       kernels::built_with_cuda() ? "this machine has no GPU"
                       : left_cuda_out() ? "this machine has no GPU, or its torch has no CUDA"
                                         : "this build has no CUDA kernels");
  }
  return gpus > 0 && kind != DeviceKind::kCpu ? at::Device(at::kCUDA, 0) : at::Device(at::kCPU);
}

bool on_cpu(DeviceKind kind) {
  return kind == DeviceKind::kCpu || (kind == DeviceKind::kAuto && choose_device(kind).is_cpu());
}

std::optional<int64_t> free_bytes_of(DeviceKind kind) {
  if (!choose_device(kind).is_cpu()) return std::nullopt;
  return free_memory_bytes(read_machine());
}

std::optional<int> choose_gpu(const Config& config, const comm::Launch& launch) {
  if (!choose_device(config.device).is_cuda()) return std::nullopt;
  const int gpus = num_gpus();
  if (gpus == 1) return 0; // srun and others show each rank its own
  if (config.dist.gpu_messages == comm::GpuMessages::kHost) return launch.local_rank % gpus;
  if (launch.local_size > gpus)
    raise<ConfigError>("{} ranks run on a machine with {} GPUs\n  try: one rank per GPU, or "
                       "dist.gpu_messages=host, or device=cpu",
                       launch.local_size, gpus);
  return launch.local_rank;
}

at::Device rank_device(DeviceKind kind, const comm::Group& world) {
  const at::Device device = choose_device(kind);
  if (!device.is_cuda() || world.size() == 1) return device;
  if (comm::carries_gpu_tensors(world))
    return at::Device(at::kCUDA, at::detail::getCUDAHooks().getCurrentDevice());
  raise<ConfigError>("device={} with {} ranks needs one process per GPU, but the ranks are "
                     "threads\n  try: --backend sockets, torchrun, mpirun or srun; or device=cpu",
                     config::to_string(kind), world.size());
}

namespace {

/// The first number of OMP_NUM_THREADS ("4" or "4,2"), as OpenMP reads it; 0 if it has none.
constexpr const char* kThreadsVariable = "OMP_NUM_THREADS";

/// None if the variable is not set or no number of threads.
int64_t threads_of_environment() {
  const char* const value = std::getenv(kThreadsVariable);
  if (value == nullptr) return 0;
  char* end = nullptr;
  const long number = std::strtol(value, &end, 10);
  const bool good = end != value && (*end == '\0' || *end == ',');
  return good && number > 0 && number <= std::numeric_limits<int32_t>::max() ? number : 0;
}

} // namespace

OwnProcessors own_processors(int local_processes) {
  cpu_set_t usable;
  CPU_ZERO(&usable);
  const int64_t allowed =
      sched_getaffinity(0, sizeof usable, &usable) == 0 ? CPU_COUNT(&usable) : 1;
  const bool bound = allowed < ::sysconf(_SC_NPROCESSORS_ONLN);
  const int64_t count = processors_for_compute(allowed, read_machine().cpu_quota);
  return {.all = count, .share = bound ? count : std::max<int64_t>(1, count / local_processes)};
}

WantedThreads wanted_threads(int64_t num_threads) {
  if (num_threads > 0) return {.number = num_threads, .key = "train.num_threads"};
  return {.number = threads_of_environment(), .key = kThreadsVariable};
}

void check_threads(int64_t num_threads) {
  constexpr int64_t kFew = 16; // which no machine minds
  const int64_t cores = std::max<int64_t>(1, ::sysconf(_SC_NPROCESSORS_ONLN));
  const auto [number, key] = wanted_threads(num_threads);
  if (number <= std::max(kFew, 4 * cores)) return;
  raise<ConfigError>("{}={} is more than 4 threads for each of the {} of this machine\n"
                     "  try: {}={}",
                     key, number, counted(cores, "core"), key, cores);
}

void set_compute_threads(int64_t num_threads, int local_processes) {
  check_threads(num_threads);
  num_threads = wanted_threads(num_threads).number;
  if (num_threads == 0) num_threads = own_processors(local_processes).share;
  comm::make_first_vector_calls();
  at::set_num_threads(static_cast<int>(num_threads));
}

std::string thread_warning(int64_t num_threads, const OwnProcessors& own, bool by_torchrun) {
  const auto [all, share] = own;
  const auto [number, key] = wanted_threads(num_threads);
  if (number > share)
    return fmt::format("{}={} is more than the {} {}\n  try: {}={}", key, number,
                       counted(number > all ? all : share, "processor"),
                       number > all ? "that this process may use" : "for each rank of this machine",
                       key, share);
  const char* const variable = std::getenv(kThreadsVariable);
  if (number == 0 && variable != nullptr && *variable != '\0')
    return fmt::format("{}={} is no number of threads, so each rank takes {}\n  try: {}={}", key,
                       variable, share, key, share);
  if (num_threads == 0 && by_torchrun && number == 1 && share > 1)
    return fmt::format("each rank computes with 1 thread, because torchrun sets OMP_NUM_THREADS=1 "
                       "unless it is set, but there are {} for each\n  try: OMP_NUM_THREADS={}",
                       counted(share, "processor"), share);
  return {};
}

Finding disturbance() {
  const int64_t threads = at::get_num_threads(), processors = own_processors(1).all;
  if (threads > processors)
    return {.what = fmt::format("{} compute threads shared {}", threads,
                                counted(processors, "processor")),
            .remedy = fmt::format("train.num_threads={}", processors)};
  return {.what = "other programs were running", .remedy = "stop other programs"};
}

namespace {

/// One way to a matrix product.
struct Contender {
  std::string name;
  std::function<void()> run;
  double flops = 0;
  double seconds = std::numeric_limits<double>::infinity();
  int clean_runs = 0;

  void time(RunTimer& timer) {
    const TimedRun timed = timer(run);
    if (!timed.disturbed) ++clean_runs;
    seconds = std::min(seconds, timed.seconds);
  }
  double rate() const { return flops / seconds; }
};

/// Every fast entry, and LibTorch, for y = x w^T.
std::vector<Contender> contenders(int64_t m, int64_t n, int64_t k, at::ScalarType type) {
  const auto options = at::TensorOptions(type);
  const at::Tensor x = at::full({m, k}, 0.5, options), w = at::full({n, k}, 0.5, options);
  at::Tensor y = at::empty({m, n}, options);
  const double flops =
      2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  const kernels::DType dtype = nn::kernel_dtype(type);
  const kernels::GemmArgs args{.m = m,
                               .n = n,
                               .k = k,
                               .transpose_b = true,
                               .in_dtype = dtype,
                               .out_dtype = dtype,
                               .a = x.data_ptr(),
                               .lda = k,
                               .b = w.data_ptr(),
                               .ldb = k,
                               .c = y.data_ptr(),
                               .ldc = n};
  std::vector<Contender> all;
  const auto add = [&](std::string_view by, std::function<void()> run) {
    all.push_back(
        {.name = fmt::format("{}x{}x{}, {}", m, n, k, by), .run = std::move(run), .flops = flops});
  };
  for (const auto& entry : kernels::gemm_entries())
    if (entry.name != "reference" && entry.refuse(args, {}).empty())
      add(entry.name, [run = entry.run, args, x, w, y] { run(args, {}); });
  add("LibTorch", [x, w, y]() mutable { at::mm_out(y, x, w.t()); });
  return all;
}

} // namespace

Peak measure_gemm_peak(Precision precision) {
  constexpr double kSeconds = 0.15, kPatience_s = 1.5; // of the best one, besides two runs of each
  constexpr int kCleanRuns = 3;
  const nn::NoAutograd guard;
  RunTimer timer;
  std::vector<Contender> all;
  for (const auto& [m, n, k] :
       {std::array<int64_t, 3>{1536, 1536, 1536}, std::array<int64_t, 3>{512, 3072, 768},
        std::array<int64_t, 3>{1024, 768, 3072}}) {
    for (Contender& one : contenders(m, n, k, scalar_type(precision))) {
      one.time(timer); // fills buffers and caches
      if (all.empty() || one.rate() > 0.2 * all.front().rate()) one.time(timer);
      all.push_back(std::move(one));
    }
  }
  Contender& best =
      *std::max_element(all.begin(), all.end(),
                        [](const Contender& a, const Contender& b) { return a.rate() < b.rate(); });
  const double begin = monotonic_s();
  const auto passed_s = [&] { return monotonic_s() - begin; };
  while (passed_s() < kSeconds || (best.clean_runs < kCleanRuns && passed_s() < kPatience_s))
    best.time(timer);
  return {.flops = best.rate(),
          .source = fmt::format("best of {} {} matrix products here ({}, {})", all.size(),
                                config::to_string(precision), best.name,
                                counted(at::get_num_threads(), "thread")),
          .disturbed = best.clean_runs < kCleanRuns};
}

std::optional<Peak> find_peak(const Config& config, at::Device device) {
  if (config.logger.peak_tflops)
    return Peak{*config.logger.peak_tflops * 1e12, "logger.peak_tflops"};
  if (device.is_cpu()) {
    Peak peak = measure_gemm_peak(config.dtype);
    nn::reset_memory_peak(comm::current_rank()); // its matrices are no memory of the run
    return peak;
  }
  const Arithmetic arithmetic = config.dtype == Precision::kFp64   ? Arithmetic::kFp64
                                : config.dtype == Precision::kFp32 ? Arithmetic::kFp32
                                                                   : Arithmetic::kBf16;
  return gpu_peak(kernels::gpu_name(device.index()), arithmetic);
}

void tell_peak(const std::optional<Peak>& peak) {
  if (!peak) {
    log::info(
        "MFU is not shown, because the peak performance of this device is unknown\n  try: set "
        "logger.peak_tflops");
    return;
  }
  log::info("MFU is measured against {:.3f} TFLOP/s: {}", peak->flops / 1e12, peak->source);
  if (const auto [what, remedy] = disturbance(); peak->disturbed)
    log::warning("{} while the peak was measured: MFU may be too high\n  try: {}, or set "
                 "logger.peak_tflops",
                 what, remedy);
}

} // namespace pentatron::trainer
