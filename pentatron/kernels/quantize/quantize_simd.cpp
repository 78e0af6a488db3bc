#include "pentatron/kernels/quantize/quantize_entries.h"

#if defined(__x86_64__)

#define PT_SIMD_NO_CONTRACTION
#define PT_SIMD_BODY "pentatron/kernels/quantize/quantize_simd_body.h"
#include "pentatron/kernels/common/foreach_isa.h"

namespace pentatron::kernels {

void QuantizeAvx2::run(const Quantize& a, const Context&) {
  avx2::run(a);
}
void QuantizeAvx512::run(const Quantize& a, const Context&) {
  avx512::run(a);
}

} // namespace pentatron::kernels

#endif
