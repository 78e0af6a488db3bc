#include "pentatron/kernels/contract.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string_view>

#include <omp.h>

#include <fmt/ranges.h>

#include "pentatron/base/error.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace pentatron::kernels {

namespace {

/// Whether the processor has amx-tile and amx-bf16, the kernel saves tile state, and it permits
/// this process to use it. Linux gives the 8 KiB of tile data only to processes that ask
/// (Documentation/arch/x86/xstate.rst); the permission holds for all threads and for children.
bool ask_for_amx() {
#if defined(__x86_64__) && defined(__linux__)
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned kOsXsave = 1U << 27;                      // leaf 1, ecx
  constexpr unsigned kAmxBf16 = 1U << 22, kAmxTile = 1U << 24; // leaf 7, edx
  constexpr unsigned kTileState = 1U << 17 | 1U << 18;         // XCR0: TILECFG and TILEDATA
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, asm/prctl.h
  if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c & kOsXsave) == 0) return false;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  if ((d & kAmxBf16) == 0 || (d & kAmxTile) == 0) return false;
  unsigned low = 0, high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  if ((low & kTileState) != kTileState) return false;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

#if defined(__x86_64__)
/// Not every compiler's __builtin_cpu_supports() knows it. What it needs of the system, AVX does.
bool has_f16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}
#endif

} // namespace

std::string_view name(DType t) {
  switch (t) {
  case DType::kFloat64:
    return "float64";
  case DType::kFloat32:
    return "float32";
  case DType::kBFloat16:
    return "bfloat16";
  case DType::kFloat16:
    return "float16";
  }
  return "unknown";
}

const CpuFeatures& cpu_features() {
  static const CpuFeatures features = [] {
    CpuFeatures f;
#if defined(__x86_64__)
    f.avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
    f.avx512 = f.avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    f.avx512_bf16 = f.avx512 && __builtin_cpu_supports("avx512bf16");
#endif
    if (const char* limit = std::getenv("PENTATRON_CPU")) {
      const std::string_view level = limit;
      constexpr std::array<std::string_view, 4> kLevels = {"reference", "avx2", "avx512",
                                                           "avx512_bf16"};
      if (std::find(kLevels.begin(), kLevels.end(), level) == kLevels.end())
        raise<ConfigError>("the environment variable PENTATRON_CPU={} is not one of {}\n  try: "
                           "unset PENTATRON_CPU",
                           level, fmt::join(kLevels, ", "));
      if (level == "reference") f = {};
      if (level == "avx2") f.avx512 = f.avx512_bf16 = false;
      if (level == "avx512") f.avx512_bf16 = false;
      if (level == "avx512_bf16") return f;
    }
    f.amx_bf16 = f.avx512_bf16 && ask_for_amx();
    return f;
  }();
  return features;
}

int num_threads() {
  return omp_get_max_threads();
}

} // namespace pentatron::kernels
