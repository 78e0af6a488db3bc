#include "pentatron/kernels/common/dispatch.h"
#include "pentatron/kernels/rope/rope_entries.h"

#define PT_SIMD_BODY "pentatron/kernels/rope/rope_simd_body.h"
#include "pentatron/kernels/common/foreach_isa.h"

namespace pentatron::kernels {

std::string RopeAvx2::refuse(const Rope& a, const Context& c) {
  return refuse_unless_simd(cpu_features().avx2, a.dtype, c);
}
std::string RopeAvx512::refuse(const Rope& a, const Context& c) {
  return refuse_unless_simd(cpu_features().avx512, a.dtype, c);
}
void RopeAvx2::run(const Rope& a, const Context&) {
  avx2::run(a);
}
void RopeAvx512::run(const Rope& a, const Context&) {
  avx512::run(a);
}

} // namespace pentatron::kernels
