#include "pentatron/kernels/attention/score_factors.h"

#if defined(__x86_64__)

#define PT_SIMD_BODY "pentatron/kernels/attention/score_factors_simd_body.h"
#include "pentatron/kernels/common/foreach_isa.h"

namespace pentatron::kernels::attention_detail {

void cap_scores_avx2(const CapTile& tile) {
  avx2::cap_scores(tile);
}
void cap_scores_avx512(const CapTile& tile) {
  avx512::cap_scores(tile);
}
void dropout_factors_avx2(const DropoutTile& tile) {
  avx2::dropout_factors(tile);
}
void dropout_factors_avx512(const DropoutTile& tile) {
  avx512::dropout_factors(tile);
}

} // namespace pentatron::kernels::attention_detail

#endif
