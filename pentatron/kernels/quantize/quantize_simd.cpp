#include "pentatron/kernels/quantize/quantize_entries.h"

#if defined(__x86_64__)

#include <vector>

#define PT_SIMD_NO_CONTRACTION
#define PT_SIMD_BODY "pentatron/kernels/quantize/quantize_simd_body.h"
#include "pentatron/kernels/common/foreach_isa.h"

namespace pentatron::kernels {

void QuantizeAvx2::run(const Quantize& a, const Context&) {
  avx2::run(a);
}
float QuantizeAvx2::largest_size(DType dtype, int64_t n, const void* x) {
  return avx2::largest_size(dtype, n, x);
}
void QuantizeAvx512::run(const Quantize& a, const Context&) {
  avx512::run(a);
}
float QuantizeAvx512::largest_size(DType dtype, int64_t n, const void* x) {
  return avx512::largest_size(dtype, n, x);
}

} // namespace pentatron::kernels

#endif
