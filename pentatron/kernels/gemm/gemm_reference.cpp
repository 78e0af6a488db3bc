#include "pentatron/kernels/gemm/gemm.h"

#include <bit>
#include <cmath>

namespace pentatron::kernels {
namespace {

double load(const void* p, DType dtype, int64_t i) {
  switch (dtype) {
  case DType::kFloat64:
    return static_cast<const double*>(p)[i];
  case DType::kBFloat16:
    return std::bit_cast<float>(static_cast<uint32_t>(static_cast<const uint16_t*>(p)[i]) << 16);
  default:
    return static_cast<const float*>(p)[i];
  }
}

uint16_t to_bf16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if (std::isnan(x)) return static_cast<uint16_t>((bits >> 16) | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

void store(void* p, DType dtype, int64_t i, double x) {
  switch (dtype) {
  case DType::kFloat64:
    static_cast<double*>(p)[i] = x;
    break;
  case DType::kBFloat16:
    static_cast<uint16_t*>(p)[i] = to_bf16(static_cast<float>(x));
    break;
  default:
    static_cast<float*>(p)[i] = static_cast<float>(x);
    break;
  }
}

// Sums in Acc: the accumulate type of the arguments.
template <class Acc> void run(const GemmArgs& g) {
  for (int64_t item = 0; item < g.batch; ++item) {
    for (int64_t i = 0; i < g.m; ++i) {
      for (int64_t j = 0; j < g.n; ++j) {
        Acc sum = 0;
        for (int64_t p = 0; p < g.k; ++p) {
          const int64_t ia = item * g.stride_a + (g.transpose_a ? p * g.lda + i : i * g.lda + p);
          const int64_t ib = item * g.stride_b + (g.transpose_b ? j * g.ldb + p : p * g.ldb + j);
          sum += static_cast<Acc>(load(g.a, g.in_dtype, ia)) *
                 static_cast<Acc>(load(g.b, g.in_dtype, ib));
        }
        const int64_t ic = item * g.stride_c + i * g.ldc + j;
        if (g.accumulate) sum += static_cast<Acc>(load(g.c, g.out_dtype, ic));
        if (g.bias != nullptr) sum += static_cast<Acc>(load(g.bias, g.bias_dtype, j));
        store(g.c, g.out_dtype, ic, sum);
      }
    }
  }
}

} // namespace

void gemm_reference(const GemmArgs& args, const Context&) {
  if (args.in_dtype == DType::kFloat64) {
    run<double>(args);
  } else {
    run<float>(args);
  }
}

} // namespace pentatron::kernels
