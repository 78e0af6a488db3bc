/// The matrix products of attention in bf16 tiles, over any type of tiles (common/tile.h). The sums
/// lie in buffers of whole tiles, which the tiles are loaded from and stored to.
#pragma once

#include "pentatron/kernels/attention/avx512_products.h"
#include "pentatron/kernels/gemm/tiles.h"

namespace pentatron::kernels::attention_detail {

/// The members are those of Avx512Products.
template <class Tiles> class TileProducts : public Avx512Steps<true> {
 public:
  static constexpr bool kPair = true;
  static constexpr int64_t kElement = 2;
  static constexpr int64_t kKeys = 128;
  static constexpr int64_t kKeyStep = 32;
  // Sums of keys are whole tiles. The keys of a pass end with a pair of tiles, or with the pair's
  // keys: behind the last key of a block there are no others, whose sums the rest of a tile would
  // spoil.
  static_assert(kPanels * kQueries % kKeys == 0 && kKeys % kTileK == 0);

  static int64_t steps(int64_t k) { return ceil_div(k, kTileK); }
  static int64_t rows_size(int64_t n, int64_t k) {
    return ceil_div(n, kTileRows) * steps(k) * gemm_detail::kTileUnits;
  }
  static int64_t columns_size(int64_t n, int64_t k) {
    return ceil_div(n, 32) * 2 * steps(k) * gemm_detail::kTileUnits;
  }
  static int64_t sum_rows(int64_t n) { return round_up(n, kTileRows); }
  static int64_t sum_columns(int64_t n) { return round_up(n, 32); }
  static int64_t score(int64_t key, int half) { return key * kQueries + 16 * half; }

  static void pack_rows_along(const char* src, int64_t ld, int64_t k, int64_t n, uint32_t* dst) {
    for (int64_t i = 0; i < n; i += kTileRows) {
      gemm_detail::pack_rows_along(src + i * ld * 2, ld, k,
                                   static_cast<int>(std::min<int64_t>(kTileRows, n - i)),
                                   dst + rows_size(i, k));
    }
  }
  static void pack_rows_across(const char* src, int64_t ld, int64_t k, int64_t n, uint32_t* dst) {
    gemm_detail::pack_rows_across(src, ld, k, n, dst);
  }
  static void pack_columns_along(const char* src, int64_t ld, int64_t k, int n, uint32_t* dst) {
    for (int i = 0; i < kQueries; i += 16) {
      gemm_detail::pack_along<true>(src + i * ld * 2, ld, k,
                                    {0, std::clamp(n - i, 0, 16), kQueries, dst + i, true});
    }
  }
  static void pack_columns_across(const char* src, int64_t ld, int64_t k, int64_t n,
                                  uint32_t* dst) {
    std::array<gemm_detail::Strip, kMaxHeadSize / 16> strips;
    int count = 0;
    for (int64_t i = 0; i < n; i += 16) {
      const int64_t panel = i / 32 * 32;
      strips[static_cast<size_t>(count++)] = {i, static_cast<int>(std::min<int64_t>(16, n - i)), 32,
                                              dst + columns_size(panel, k) + (i - panel), true};
    }
    gemm_detail::pack_across<true>(src, ld, k, strips.data(), count);
  }

  void multiply_keys(const uint32_t* keys, int64_t from, int64_t count, int64_t, int64_t d,
                     const uint32_t* queries, float* scores) {
    for (int64_t i = 0; i < count; i += 32) {
      multiply_tiles<false>(tiles_, count_tiles(count - i), 2, steps(d),
                            packed_rows(keys + rows_size(from + i, d), d), pairs(queries),
                            scores + i * kQueries, kQueries * kFloat);
    }
  }
  /// Writes zeros after the probabilities, up to a whole step.
  void add_features(const uint32_t* features, int64_t from, int64_t count, int64_t packed,
                    int64_t d, uint32_t* probabilities, float* out) {
    const int64_t used = ceil_div(count, 2) * kQueries, all = steps(count) * kTileK / 2 * kQueries;
    std::fill_n(probabilities + used, all - used, 0U);
    for (int64_t c = 0; c < d; c += 32) {
      multiply_tiles<true>(
          tiles_, count_tiles(d - c), 2, steps(count),
          packed_rows(features + rows_size(c, packed) + from / kTileK * gemm_detail::kTileUnits,
                      packed),
          pairs(probabilities), out + c * kQueries, kQueries * kFloat);
    }
  }
  /// x is used where it lies: its rows of 32 queries are rows of tiles.
  void add_to_keys(const void* x, const uint32_t* y, const QueryRange& range, int64_t keys,
                   int64_t d, uint32_t*, float* dst) {
    constexpr int64_t kRowBytes = kQueries * 2;
    const int64_t width = sum_columns(d);
    for (int64_t key = 0; key < keys; key += 32) {
      const TileGrid rows{static_cast<const char*>(x) + (range.first * kKeys + key) * kRowBytes,
                          kRowBytes, kTileRows * kRowBytes, kKeys * kRowBytes};
      for (int64_t c = 0; c < d; c += 32) {
        multiply_tiles<true>(
            tiles_, count_tiles(keys - key), count_tiles(d - c), range.last - range.first, rows,
            pairs(y + columns_size(c, range.count) + range.first * 2 * gemm_detail::kTileUnits),
            dst + key * width + c, width * kFloat);
      }
    }
  }

 private:
  static constexpr int64_t kFloat = sizeof(float);

  static int count_tiles(int64_t lanes) { return lanes > kTileRows ? 2 : 1; }
  static TileGrid packed_rows(const uint32_t* data, int64_t k) {
    return {data, 64, steps(k) * kTileBytes, kTileBytes};
  }
  static TileGrid pairs(const uint32_t* data) { return {data, 128, 64, 2 * kTileBytes}; }

  Tiles tiles_;
};

} // namespace pentatron::kernels::attention_detail
