/// The FLOP/s that MFU and HFU are measured against: from a table for GPUs, measured for CPUs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace pentatron::trainer {

enum class Arithmetic : uint8_t { kFp64, kFp32, kTf32, kBf16, kFp8 };
std::string_view arithmetic_name(Arithmetic arithmetic);

/// A peak that says where it is from: "NVIDIA H200 bf16 (data sheet, dense)", "best of 12 fp32
/// matrix products here (512x3072x768, avx512, 2 threads)".
struct Peak {
  double flops = 0; ///< a second
  std::string source;
  bool disturbed = false; ///< measured while other programs ran, so it may be too low
};

/// Dense peak without sparsity of the GPU that calls itself `device_name` (cudaDeviceProp.name),
/// from the vendors' data sheets; fp64, tf32, bf16 and fp8 count tensor cores with fp32 (fp64)
/// accumulation, fp32 plain cores. None if the GPU is not in the table or lacks the arithmetic.
std::optional<Peak> gpu_peak(std::string_view device_name, Arithmetic arithmetic);

/// Bytes a second of a[i] = b[i] + s c[i] on `threads` threads, the best of several passes over
/// arrays of `array_bytes` each; only the three arrays are counted, not additional fetches of the
/// caches. Source: McCalpin 1995, STREAM.
double measure_bandwidth(int threads, size_t array_bytes = size_t{128} << 20);

/// FLOPs of a step over its time and the peak of all devices; none without a peak.
std::optional<double> utilization(double flops, double seconds, const std::optional<Peak>& peak,
                                  int64_t devices);

} // namespace pentatron::trainer
