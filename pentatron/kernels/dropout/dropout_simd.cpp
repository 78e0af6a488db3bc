#include "pentatron/kernels/dropout/dropout_entries.h"

#if defined(__x86_64__)

#define PT_SIMD_BODY "pentatron/kernels/dropout/dropout_simd_body.h"
#include "pentatron/kernels/common/foreach_isa.h"

namespace pentatron::kernels {

void DropoutAvx2::run(const Dropout& a, const Context&) {
  avx2::run(a);
}
void DropoutAvx512::run(const Dropout& a, const Context&) {
  avx512::run(a);
}

} // namespace pentatron::kernels

#endif
