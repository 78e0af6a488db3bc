// Included once per instruction set by score_factors.cpp.

#include "pentatron/kernels/common/math_body.h"
#include "pentatron/kernels/common/philox_body.h"

void cap_scores(const attention_detail::CapTile& tile) {
  for (int64_t key = 0; key < tile.keys; ++key) {
    for (int64_t lane = 0; lane < 16; lane += kLanes) {
      const int64_t at = key * tile.stride + lane;
      const VF t = tanh(load(tile.scores + at) * tile.to_ratio);
      store(tile.scores + at, t * tile.cap);
      if (tile.slopes != nullptr) store(tile.slopes + at, 1.0f - t * t);
    }
  }
}

/// A lane for each query: the four words of a counter are four keys, 16 apart.
void dropout_factors(const attention_detail::DropoutTile& tile) {
  alignas(64) std::array<uint32_t, 16> low{}, high{};
  for (int i = 0; i < tile.queries; ++i) {
    low[i] = static_cast<uint32_t>(tile.row_ids[i]);
    high[i] = static_cast<uint32_t>(tile.row_ids[i] >> 32);
  }
  const int64_t first = tile.feature, end = first + tile.keys;
  for (int64_t group = first / 64; group * 64 < end; ++group) {
    for (int64_t i = 0; i < 16; ++i) {
      for (int64_t lane = 0; lane < 16; lane += kLanes) {
        PhiloxLanes lanes{
            {VU{}, VU{}, VU{} + static_cast<uint32_t>(group * 16 + i), VU{} + tile.site}};
        std::memcpy(&lanes.word[0], low.data() + lane, sizeof(VU));
        std::memcpy(&lanes.word[1], high.data() + lane, sizeof(VU));
        lanes = philox4x32(lanes, tile.key);
        for (int64_t w = 0; w < 4; ++w) {
          const int64_t key = group * 64 + w * 16 + i - first;
          if (key < 0 || key >= tile.keys) continue;
          const VF factor = lanes.word[w] >= tile.threshold ? broadcast(tile.factor) : VF{};
          store(tile.to + key * tile.stride + lane, factor);
        }
      }
    }
  }
}
