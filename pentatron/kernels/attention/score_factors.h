/// What the cap and dropout of attention do to a block of scores, 16 queries side by side.
#pragma once

#include <array>
#include <cstdint>

namespace pentatron::kernels::attention_detail {

/// Factors that lie where scores lie; null: ones.
struct ScoreFactors {
  const float* keep = nullptr;  ///< of dropout, 0 or 1 / (1 - p), for probabilities
  const float* slope = nullptr; ///< of the cap, for gradients of scores
};

/// Scores s [key][16], `stride` apart, become cap tanh(s to_ratio), and slopes 1 - tanh^2.
struct CapTile {
  float* scores = nullptr;
  float* slopes = nullptr; ///< null: not needed
  int64_t keys = 0, stride = 0;
  float to_ratio = 0, cap = 0;
};

/// Factors [key][16], `stride` apart, of keys with the features from `feature` on
/// (kernels/dropout/dropout.h). Those of queries from `queries` on are arbitrary but finite.
struct DropoutTile {
  const uint64_t* row_ids = nullptr; ///< [queries]
  int queries = 0;                   ///< at most 16
  std::array<uint32_t, 2> key = {};
  uint32_t site = 0, threshold = 0;
  float factor = 0; ///< 1 / (1 - p)
  int64_t feature = 0;
  int64_t keys = 0;
  float* to = nullptr;
  int64_t stride = 0;
};

void cap_scores_avx2(const CapTile& tile);
void cap_scores_avx512(const CapTile& tile);
void dropout_factors_avx2(const DropoutTile& tile);
void dropout_factors_avx512(const DropoutTile& tile);

} // namespace pentatron::kernels::attention_detail
