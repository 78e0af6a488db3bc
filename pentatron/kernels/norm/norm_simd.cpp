#include "pentatron/kernels/common/column_sums.h"
#include "pentatron/kernels/common/dispatch.h"
#include "pentatron/kernels/norm/norm_entries.h"

#define PT_SIMD_BODY "pentatron/kernels/norm/norm_simd_body.h"
#include "pentatron/kernels/common/foreach_isa.h"

namespace pentatron::kernels {

std::string NormAvx2::refuse(const NormForward& a, const Context& c) {
  return refuse_unless_simd(cpu_features().avx2, a.dtype, c);
}
std::string NormAvx2::refuse(const NormBackward& a, const Context& c) {
  return refuse_unless_simd(cpu_features().avx2, a.dtype, c);
}
std::string NormAvx512::refuse(const NormForward& a, const Context& c) {
  return refuse_unless_simd(cpu_features().avx512, a.dtype, c);
}
std::string NormAvx512::refuse(const NormBackward& a, const Context& c) {
  return refuse_unless_simd(cpu_features().avx512, a.dtype, c);
}
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
