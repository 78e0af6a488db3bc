#include "tests/kernels/gpu/rates.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>

#include <cuda_runtime_api.h>

#include "pentatron/base/error.h"
#include "pentatron/kernels/selection/probe.h"
#include "tests/kernels/gpu/shared_memory.h"

namespace pentatron::kernels::testing {
namespace {

constexpr int64_t kRowsOfGpu = 16384, kRowsOfCpu = 1024;
constexpr int kRuns = 20;

/// Seconds of one call between two events of the GPU, or by the clock.
double seconds_of(const std::function<void()>& call) {
  if (!gpu_answers()) {
    const auto start = std::chrono::steady_clock::now();
    call();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  cudaEvent_t begin, end;
  cudaEventCreate(&begin);
  cudaEventCreate(&end);
  cudaEventRecord(begin);
  call();
  cudaEventRecord(end);
  wait_for_gpu();
  float milliseconds = 0;
  cudaEventElapsedTime(&milliseconds, begin, end);
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  return milliseconds * 1e-3;
}

/// Of the fastest of kRuns, after three that bring the memory to where it is used.
double fastest(const std::function<void()>& call) {
  for (int i = 0; i < 3; ++i) seconds_of(call);
  double best = seconds_of(call);
  for (int i = 1; i < kRuns; ++i) best = std::min(best, seconds_of(call));
  return best;
}

/// Bytes a second, read and written, of a copy of 512 MiB (on the CPU 64 MiB).
double copy_bandwidth() {
  const size_t bytes = size_t{gpu_answers() ? 512u : 64u} << 20;
  if (!gpu_answers()) {
    const auto from = std::make_unique<std::byte[]>(bytes),
               to = std::make_unique<std::byte[]>(bytes);
    return 2.0 * bytes / fastest([&] { std::memcpy(to.get(), from.get(), bytes); });
  }
  void *from = nullptr, *to = nullptr;
  if (cudaMalloc(&from, bytes) != cudaSuccess || cudaMalloc(&to, bytes) != cudaSuccess)
    raise<Error>("the GPU has no {} bytes", 2 * bytes);
  const double seconds =
      fastest([&] { cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, nullptr); });
  cudaFree(from);
  cudaFree(to);
  return 2.0 * static_cast<double>(bytes) / seconds;
}

bool wanted(OpClass c) {
  const DType type = element_type(c);
  return c.op != Op::kGemm && c.op != Op::kAttentionForward && c.op != Op::kAttentionBackward &&
         c.op != Op::kCachedAttention && (type == DType::kFloat32 || type == DType::kBFloat16);
}

} // namespace

int print_rates() {
  std::printf("{\"gpu\": %s, \"copy_bytes_per_s\": %.6g, \"operators\": [",
              gpu_answers() ? "true" : "false", copy_bandwidth());
  ProbeMemory memory;
  const char* separator = "";
  for (const OpClass c : all_op_classes()) {
    if (!wanted(c)) continue;
    const Probe probe = make_probe(c, memory, gpu_answers() ? kRowsOfGpu : kRowsOfCpu);
    const int first = probe.first(); // the CUDA entry is the first of its list
    if (first < 0 || (gpu_answers() && probe.entries[first].name != "cuda")) continue;
    const double seconds = fastest(probe.entries[first].run);
    std::printf(
        "%s\n {\"operator\": \"%s\", \"entry\": \"%s\", \"bytes\": %.0f, \"seconds\": %.6g}",
        separator, class_name(c).c_str(), std::string(probe.entries[first].name).c_str(),
        probe.work, seconds);
    separator = ",";
  }
  std::printf("\n]}\n");
  return 0;
}

} // namespace pentatron::kernels::testing
