#include "pentatron/kernels/activation/activation_entries.h"
#include "pentatron/kernels/common/column_sums.h"
#include "pentatron/kernels/common/dispatch.h"

#define PT_SIMD_BODY "pentatron/kernels/activation/activation_simd_body.h"
#include "pentatron/kernels/common/foreach_isa.h"

namespace pentatron::kernels {

std::string ActivationAvx2::refuse(const ActivationForward& a, const Context& c) {
  return refuse_unless_simd(cpu_features().avx2, a.dtype, c);
}
std::string ActivationAvx2::refuse(const ActivationBackward& a, const Context& c) {
  return refuse_unless_simd(cpu_features().avx2, a.dtype, c);
}
std::string ActivationAvx512::refuse(const ActivationForward& a, const Context& c) {
  return refuse_unless_simd(cpu_features().avx512, a.dtype, c);
}
std::string ActivationAvx512::refuse(const ActivationBackward& a, const Context& c) {
  return refuse_unless_simd(cpu_features().avx512, a.dtype, c);
}
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
