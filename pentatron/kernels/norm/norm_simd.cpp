#include "pentatron/kernels/norm/norm_entries.h"

#if defined(__x86_64__)

#include "pentatron/kernels/common/column_sums.h"

#define PT_SIMD_BODY "pentatron/kernels/norm/norm_simd_body.h"
#include "pentatron/kernels/common/foreach_isa.h"

namespace pentatron::kernels {

void NormAvx2::run(const NormForward& a, const Context& c) {
  avx2::run(a, c);
}
void NormAvx2::run(const NormBackward& a, const Context& c) {
  avx2::run(a, c);
}
void NormAvx512::run(const NormForward& a, const Context& c) {
  avx512::run(a, c);
}
void NormAvx512::run(const NormBackward& a, const Context& c) {
  avx512::run(a, c);
}

} // namespace pentatron::kernels

#endif
