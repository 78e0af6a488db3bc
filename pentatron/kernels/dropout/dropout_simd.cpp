#include "pentatron/kernels/common/dispatch.h"
#include "pentatron/kernels/dropout/dropout_entries.h"

#define PT_SIMD_BODY "pentatron/kernels/dropout/dropout_simd_body.h"
#include "pentatron/kernels/common/foreach_isa.h"

namespace pentatron::kernels {

std::string DropoutAvx2::refuse(const Dropout& a, const Context& c) {
  if (dropout_threshold(a.p) >> 32 != 0) return "p = 1 runs in the reference";
  return refuse_unless_simd(cpu_features().avx2, a.dtype, c);
}
std::string DropoutAvx512::refuse(const Dropout& a, const Context& c) {
  if (dropout_threshold(a.p) >> 32 != 0) return "p = 1 runs in the reference";
  return refuse_unless_simd(cpu_features().avx512, a.dtype, c);
}
void DropoutAvx2::run(const Dropout& a, const Context&) {
  avx2::run(a);
}
void DropoutAvx512::run(const Dropout& a, const Context&) {
  avx512::run(a);
}

} // namespace pentatron::kernels
