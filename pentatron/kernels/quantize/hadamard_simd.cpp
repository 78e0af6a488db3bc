#include "pentatron/kernels/quantize/hadamard_entries.h"

#if defined(__x86_64__)

#define PT_SIMD_BODY "pentatron/kernels/quantize/hadamard_simd_body.h"
#include "pentatron/kernels/common/foreach_isa.h"

namespace pentatron::kernels {

void HadamardAvx2::run(const Hadamard& h, const Context&) {
  avx2::run(h);
}
void HadamardAvx512::run(const Hadamard& h, const Context&) {
  avx512::run(h);
}

} // namespace pentatron::kernels

#endif
