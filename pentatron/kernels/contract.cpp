#include "pentatron/kernels/contract.h"

#include <cstdlib>

#include <omp.h>

namespace pentatron::kernels {

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
    f.avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    f.avx512 = f.avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    f.avx512_bf16 = f.avx512 && __builtin_cpu_supports("avx512bf16");
#endif
    if (const char* limit = std::getenv("PENTATRON_CPU")) {
      const std::string_view level = limit;
      if (level == "reference") f = {};
      if (level == "avx2") f.avx512 = f.avx512_bf16 = false;
      if (level == "avx512") f.avx512_bf16 = false;
    }
    return f;
  }();
  return features;
}

int num_threads() {
  return omp_get_max_threads();
}

} // namespace pentatron::kernels
