#include "pentatron/kernels/rows/rows_entries.h"

#if defined(__x86_64__)

#define PT_SIMD_BODY "pentatron/kernels/rows/rows_simd_body.h"
#include "pentatron/kernels/common/foreach_isa.h"

namespace pentatron::kernels {

void SumRowsAvx2::run(const SumRows& a, const Context&) {
  avx2::run(a);
}
void SumRowsAvx512::run(const SumRows& a, const Context&) {
  avx512::run(a);
}

} // namespace pentatron::kernels

#endif
