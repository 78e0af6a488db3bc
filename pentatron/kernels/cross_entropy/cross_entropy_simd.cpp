#include "pentatron/kernels/cross_entropy/cross_entropy_entries.h"

#if defined(__x86_64__)

#include <limits>

#include "pentatron/kernels/common/parallel.h"

#define PT_SIMD_BODY "pentatron/kernels/cross_entropy/cross_entropy_simd_body.h"
#define PT_SIMD_NO_CONTRACTION
#include "pentatron/kernels/common/foreach_isa.h"

namespace pentatron::kernels::cross_entropy_avx2 {

void stats(const CrossEntropyStatsArgs& a, const Context& c) {
  avx2::stats(a, c);
}
void gradient(const CrossEntropyGradientArgs& a, const Context& c) {
  avx2::gradient(a, c);
}
void fused(const CrossEntropyArgs& a, const Context& c) {
  avx2::fused(a, c);
}

} // namespace pentatron::kernels::cross_entropy_avx2

namespace pentatron::kernels::cross_entropy_avx512 {

void stats(const CrossEntropyStatsArgs& a, const Context& c) {
  avx512::stats(a, c);
}
void gradient(const CrossEntropyGradientArgs& a, const Context& c) {
  avx512::gradient(a, c);
}
void fused(const CrossEntropyArgs& a, const Context& c) {
  avx512::fused(a, c);
}

} // namespace pentatron::kernels::cross_entropy_avx512

#endif
