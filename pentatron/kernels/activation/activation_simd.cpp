#include "pentatron/kernels/activation/activation_entries.h"

#if defined(__x86_64__)

#include "pentatron/kernels/common/column_sums.h"

#define PT_SIMD_BODY "pentatron/kernels/activation/activation_simd_body.h"
#include "pentatron/kernels/common/foreach_isa.h"

namespace pentatron::kernels {

void ActivationAvx2::run(const ActivationForward& a, const Context& c) {
  avx2::run(a, c);
}
void ActivationAvx2::run(const ActivationBackward& a, const Context& c) {
  avx2::run(a, c);
}
void ActivationAvx512::run(const ActivationForward& a, const Context& c) {
  avx512::run(a, c);
}
void ActivationAvx512::run(const ActivationBackward& a, const Context& c) {
  avx512::run(a, c);
}

} // namespace pentatron::kernels

#endif
