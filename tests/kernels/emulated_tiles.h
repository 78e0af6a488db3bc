/// Tiles in scalar code: the twin of kernels/common/tile.h's AmxTiles for processors without AMX.
/// It knows how many objects are alive, so that tests see that every thread gives its tiles back,
/// and it fails on a register that holds nothing.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstring>
#include <stdexcept>

#include "pentatron/kernels/common/scalar.h"
#include "pentatron/kernels/common/tile.h"

namespace pentatron::kernels::testing {

inline float flush(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  return std::bit_cast<float>((bits & 0x7f800000U) == 0 ? bits & 0x80000000U : bits);
}
/// x y + z of flushed numbers.
inline float flushed_fma(float x, float y, float z) {
  return flush(__builtin_fmaf(x, y, z));
}

class EmulatedTiles {
 public:
  inline static std::atomic<int> alive = 0, made = 0;

  EmulatedTiles() { ++alive, ++made; }
  ~EmulatedTiles() { --alive; }
  EmulatedTiles(const EmulatedTiles&) = delete;
  EmulatedTiles& operator=(const EmulatedTiles&) = delete;

  template <int kTile> void zero() {
    tiles_[kTile] = {};
    filled_[kTile] = true;
  }
  template <int kTile> void load(const void* data, int64_t row_bytes) {
    for (int i = 0; i < kTileRows; ++i) {
      std::memcpy(tiles_[kTile].data() + 16 * i, static_cast<const char*>(data) + i * row_bytes,
                  64);
    }
    filled_[kTile] = true;
  }
  template <int kTile> void load_once(const void* data, int64_t row_bytes) {
    load<kTile>(data, row_bytes);
  }
  template <int kTile> void store(void* data, int64_t row_bytes) {
    expect_filled(kTile);
    for (int i = 0; i < kTileRows; ++i)
      std::memcpy(static_cast<char*>(data) + i * row_bytes, tiles_[kTile].data() + 16 * i, 64);
  }
  template <int kSums, int kRows, int kPairs> void dot() {
    for (const int tile : {kSums, kRows, kPairs}) expect_filled(tile);
    multiply(tiles_[kSums], tiles_[kRows], tiles_[kPairs]);
  }

 private:
  using Tile = std::array<uint32_t, 256>;

  // AVX-512 for speed alone: loops over j become vectors.
  __attribute__((target("avx512f,fma"), optimize("O3"))) static void
  multiply(Tile& sums, const Tile& rows, const Tile& pairs) {
    float y[2][256], s[256];
    for (int i = 0; i < 256; ++i) {
      y[0][i] = flush(low(pairs.data()[i]));
      y[1][i] = flush(high(pairs.data()[i]));
    }
    std::memcpy(s, sums.data(), sizeof s);
    for (int i = 0; i < 256; i += 16) {
      float even[16] = {}, odd[16] = {};
      for (int p = 0; p < 16; ++p) {
        const uint32_t x = rows.data()[i + p];
        const float x0 = flush(low(x)), x1 = flush(high(x));
        for (int j = 0; j < 16; ++j) {
          even[j] = flushed_fma(x0, y[0][16 * p + j], even[j]);
          odd[j] = flushed_fma(x1, y[1][16 * p + j], odd[j]);
        }
      }
      for (int j = 0; j < 16; ++j) s[i + j] = flush(flush(s[i + j]) + flush(even[j] + odd[j]));
    }
    std::memcpy(sums.data(), s, sizeof s);
  }
  static float low(uint32_t unit) { return std::bit_cast<float>(unit << 16); }
  static float high(uint32_t unit) { return std::bit_cast<float>(unit & 0xffff0000U); }
  void expect_filled(int tile) const {
    if (!filled_[static_cast<size_t>(tile)]) throw std::logic_error("an empty tile is used");
  }

  std::array<Tile, 8> tiles_{};
  std::array<bool, 8> filled_{};
};

} // namespace pentatron::kernels::testing
