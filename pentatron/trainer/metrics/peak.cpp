#include "pentatron/trainer/metrics/peak.h"

#include <algorithm>
#include <array>
#include <barrier>
#include <chrono>
#include <thread>
#include <vector>

#include <fmt/format.h>

namespace pentatron::trainer {

namespace {

using Clock = std::chrono::steady_clock;

/// TFLOP/s; 0 where the GPU lacks the arithmetic.
struct GpuRow {
  std::string_view name; // the more particular of two names comes first
  double fp64, fp32, tf32, bf16, fp8;
};

constexpr std::array kGpus{
    GpuRow{"GB200", 40, 80, 1250, 2500, 5000},
    GpuRow{"B200", 37, 75, 1100, 2250, 4500},
    GpuRow{"GH200", 66.9, 66.9, 494.7, 989.4, 1978.9},
    GpuRow{"H200 NVL", 60, 60, 417.5, 835.5, 1671},
    GpuRow{"H200", 66.9, 66.9, 494.7, 989.4, 1978.9},
    GpuRow{"H100 PCIe", 51.2, 51.2, 378, 756, 1513},
    GpuRow{"H100 NVL", 60, 60, 417.5, 835.5, 1671},
    GpuRow{"H100", 66.9, 66.9, 494.7, 989.4, 1978.9},
    GpuRow{"H800", 1, 66.9, 494.7, 989.4, 1978.9},
    GpuRow{"H20", 1, 44, 74, 148, 296},
    GpuRow{"A100", 19.5, 19.5, 156, 312, 0},
    GpuRow{"A800", 9.7, 19.5, 156, 312, 0},
    GpuRow{"A30", 10.3, 10.3, 82, 165, 0},
    GpuRow{"A40", 0.58, 37.4, 74.8, 149.7, 0},
    GpuRow{"A10G", 0.49, 31.2, 35, 70, 0},
    GpuRow{"A10", 0.49, 31.2, 62.5, 125, 0},
    GpuRow{"L40S", 1.4, 91.6, 183, 362, 733},
    GpuRow{"L40", 1.4, 90.5, 90.5, 181, 362},
    GpuRow{"L4", 0.49, 30.3, 60, 121, 242.5},
    GpuRow{"RTX 6000 Ada", 1.4, 91.1, 182.1, 364.2, 728.5},
    GpuRow{"RTX A6000", 0.6, 38.7, 77.4, 154.8, 0},
    GpuRow{"RTX 5090", 1.6, 104.8, 104.8, 209.5, 419},
    GpuRow{"RTX 4090", 1.3, 82.6, 82.6, 165.2, 330.3},
    GpuRow{"RTX 4080", 0.76, 48.7, 48.7, 97.5, 194.9},
    GpuRow{"RTX 3090", 0.56, 35.6, 35.6, 71, 0},
    GpuRow{"V100", 7.8, 15.7, 0, 0, 0},
    GpuRow{"T4", 0.25, 8.1, 0, 0, 0},
};

/// `name` in `text`, not as a part of a longer word: "L4" is not in "L40".
bool names(std::string_view text, std::string_view name) {
  const auto is_word = [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
  };
  for (size_t at = text.find(name); at != std::string_view::npos; at = text.find(name, at + 1)) {
    const size_t end = at + name.size();
    if ((at == 0 || !is_word(text[at - 1])) && (end == text.size() || !is_word(text[end])))
      return true;
  }
  return false;
}

double tflops(const GpuRow& row, Arithmetic arithmetic) {
  switch (arithmetic) {
  case Arithmetic::kFp64:
    return row.fp64;
  case Arithmetic::kFp32:
    return row.fp32;
  case Arithmetic::kTf32:
    return row.tf32;
  case Arithmetic::kBf16:
    return row.bf16;
  case Arithmetic::kFp8:
    return row.fp8;
  }
  return 0;
}

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

} // namespace

std::string_view arithmetic_name(Arithmetic arithmetic) {
  static constexpr std::array<std::string_view, 5> kNames{"fp64", "fp32", "tf32", "bf16", "fp8"};
  return kNames[static_cast<size_t>(arithmetic)];
}

std::optional<Peak> gpu_peak(std::string_view device_name, Arithmetic arithmetic) {
  for (const GpuRow& row : kGpus) {
    if (!names(device_name, row.name)) continue;
    const double rate = tflops(row, arithmetic);
    if (rate == 0) return std::nullopt;
    return Peak{rate * 1e12, fmt::format("{} {} (data sheet of {}, dense)", device_name,
                                         arithmetic_name(arithmetic), row.name)};
  }
  return std::nullopt;
}

double measure_bandwidth(int threads, size_t array_bytes) {
  constexpr int kPasses = 6;
  threads = std::max(threads, 1);
  const size_t part =
      std::max<size_t>(array_bytes / sizeof(double) / static_cast<size_t>(threads), 1);
  std::barrier together(threads);
  std::array<double, kPasses> times{};
  const auto work = [&](int index) {
    // Each thread's own arrays, touched first by it: memory of its own node.
    std::vector<double> a(part, 0.0), b(part, 1.0), c(part, 2.0);
    for (int pass = 0; pass < kPasses; ++pass) {
      together.arrive_and_wait();
      const Clock::time_point start = Clock::now();
      double* out = a.data();
      const double *left = b.data(), *right = c.data();
      const double scale = 3.0 + pass;
#pragma omp simd
      for (size_t i = 0; i < part; ++i) out[i] = left[i] + scale * right[i];
      together.arrive_and_wait();
      if (index == 0) times[static_cast<size_t>(pass)] = seconds_since(start);
    }
    if (a[part / 2] != 1.0 + 2.0 * (3.0 + kPasses - 1))
      times[0] = -1; // keeps the loop from being removed
  };
  std::vector<std::thread> pool;
  for (int i = 1; i < threads; ++i) pool.emplace_back(work, i);
  work(0);
  for (std::thread& thread : pool) thread.join();
  const double best = *std::min_element(times.begin() + 1, times.end());
  return 3.0 * sizeof(double) * static_cast<double>(part) * threads / std::max(best, 1e-9);
}

std::optional<double> utilization(double flops, double seconds, const std::optional<Peak>& peak,
                                  int64_t devices) {
  if (!peak || peak->flops <= 0 || seconds <= 0 || devices < 1) return std::nullopt;
  return flops / (seconds * peak->flops * static_cast<double>(devices));
}

} // namespace pentatron::trainer
