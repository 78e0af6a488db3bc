#include "pentatron/kernels/rope/rope_entries.h"

#if defined(__x86_64__)

#define PT_SIMD_BODY "pentatron/kernels/rope/rope_simd_body.h"
#include "pentatron/kernels/common/foreach_isa.h"

namespace pentatron::kernels {

void RopeAvx2::run(const Rope& a, const Context&) {
  avx2::run(a);
}
void RopeAvx512::run(const Rope& a, const Context&) {
  avx512::run(a);
}

} // namespace pentatron::kernels

#endif
