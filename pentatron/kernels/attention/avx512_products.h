/// The matrix products of attention with AVX-512. Included by sources with entries for AVX-512 and
/// AMX only.
#pragma once

#include <algorithm>
#include <array>

#include "pentatron/kernels/attention/attention.h"
#include "pentatron/kernels/attention/attention_avx512.h"

namespace pentatron::kernels::attention_detail {

template <bool kPairs> class Avx512Products : public Avx512Steps<kPairs> {
 public:
  static constexpr bool kPair = kPairs;
  static constexpr int64_t kElement = kPair ? 2 : 4;
  static constexpr int64_t kPerUnit = kPair ? 2 : 1;
  static constexpr int kMr = gemm_detail::kMr;
  static constexpr int64_t kKeys =
      8 * kMr; ///< of a block; blocks begin at multiples from the start of the document
  static constexpr int64_t kKeyStep = 1;

  static int64_t units(int64_t k) { return ceil_div(k, kPerUnit); }
  static int64_t rows_size(int64_t n, int64_t k) { return n * units(k); }
  static int64_t columns_size(int64_t n, int64_t k) { return round_up(n, 32) * units(k); }
  static int64_t sum_rows(int64_t n) { return n; }
  static int64_t sum_columns(int64_t n) { return n; }
  static int64_t score(int64_t key, int half) { return key * kQueries + 16 * half; }

  /// Tiles of 14 rows.
  static void pack_rows_along(const char* src, int64_t ld, int64_t k, int64_t n, uint32_t* dst) {
    for (int64_t i = 0; i < n; i += kMr) {
      const int lanes = static_cast<int>(std::min<int64_t>(kMr, n - i));
      gemm_detail::pack_along<kPair>(src + i * ld * kElement, ld, k,
                                     {0, lanes, lanes, dst + i * units(k)});
    }
  }
  static void pack_rows_across(const char* src, int64_t ld, int64_t k, int64_t n, uint32_t* dst) {
    std::array<gemm_detail::Strip, kMaxHeadSize / kMr + 1> strips;
    int count = 0;
    for (int64_t i = 0; i < n; i += kMr) {
      const int lanes = static_cast<int>(std::min<int64_t>(kMr, n - i));
      strips[static_cast<size_t>(count++)] = {i, lanes, lanes, dst + i * units(k)};
    }
    gemm_detail::pack_across<kPair>(src, ld, k, strips.data(), count);
  }
  /// A panel of n (1..32) columns.
  static void pack_columns_along(const char* src, int64_t ld, int64_t k, int n, uint32_t* dst) {
    for (int i = 0; i < n; i += 16) {
      gemm_detail::pack_along<kPair>(src + i * ld * kElement, ld, k,
                                     {0, std::min(16, n - i), kQueries, dst + i});
    }
  }
  /// Panels of 32 columns, the last of 16 if that is enough.
  static void pack_columns_across(const char* src, int64_t ld, int64_t k, int64_t n,
                                  uint32_t* dst) {
    std::array<gemm_detail::Strip, kMaxHeadSize / 16> strips;
    int count = 0;
    for (int64_t i = 0; i < n; i += 16) {
      const int64_t panel = i / 32 * 32;
      strips[static_cast<size_t>(count++)] = {i, static_cast<int>(std::min<int64_t>(16, n - i)),
                                              n - panel > 16 ? 32 : 16,
                                              dst + panel * units(k) + (i - panel)};
    }
    gemm_detail::pack_across<kPair>(src, ld, k, strips.data(), count);
  }

  /// scores[key][32] of keys [from, from + count) of the `packed` ones.
  void multiply_keys(const uint32_t* keys, int64_t from, int64_t count, int64_t packed, int64_t d,
                     const uint32_t* queries, float* scores) const {
    for (int64_t i = 0; i < count; i += kMr) {
      gemm_detail::TileOut out;
      out.out = scores + i * kQueries;
      out.ld_out = kQueries;
      out.columns = kQueries;
      gemm_detail::find_micro_kernel<kPair>(
          static_cast<int>(std::min<int64_t>(kMr, packed - from - i)),
          2)(units(d), keys + (from + i) * units(d), queries, out);
    }
  }
  /// out[feature][32] += features of keys [from, from + count) of the `packed` ones times
  /// probabilities[key][32].
  void add_features(const uint32_t* features, int64_t from, int64_t count, int64_t packed,
                    int64_t d, const uint32_t* probabilities, float* out) const {
    for (int64_t c = 0; c < d; c += kMr) {
      const int64_t lanes = std::min<int64_t>(kMr, d - c);
      gemm_detail::TileOut tile;
      tile.in = tile.out = out + c * kQueries;
      tile.ld_in = tile.ld_out = kQueries;
      tile.columns = kQueries;
      gemm_detail::find_micro_kernel<kPair>(static_cast<int>(lanes), 2)(
          units(count), features + c * units(packed) + from / kPerUnit * lanes, probabilities,
          tile);
    }
  }
  /// dst[key][feature] += x[panel][key][32 queries] times y[query][feature]; x as rows of elements,
  /// kKeys rows a panel. `scratch`: kKeys * kPanels * 32 units.
  void add_to_keys(const void* x, const uint32_t* y, const QueryRange& range, int64_t keys,
                   int64_t d, uint32_t* scratch, float* dst) const {
    const int64_t end = std::min(range.count, range.last * kQueries),
                  queries = end - range.first * kQueries;
    for (int64_t key = 0; key < keys; key += kMr) {
      const int lanes = static_cast<int>(std::min<int64_t>(kMr, keys - key));
      for (int64_t p = range.first; p < range.last; ++p) {
        const char* const src =
            static_cast<const char*>(x) + (p * kKeys + key) * kQueries * kElement;
        gemm_detail::pack_along<kPair>(
            src, kQueries, std::min<int64_t>(kQueries, end - p * kQueries),
            {0, lanes, lanes, scratch + (p - range.first) * (kQueries / kPerUnit) * lanes});
      }
      for (int64_t c = 0; c < d; c += 32) {
        const int width = static_cast<int>(std::min<int64_t>(32, d - c));
        const int vectors = width > 16 ? 2 : 1;
        gemm_detail::TileOut tile;
        tile.in = tile.out = dst + key * d + c;
        tile.ld_in = tile.ld_out = d;
        tile.columns = width;
        gemm_detail::find_micro_kernel<kPair>(lanes, vectors)(
            units(queries), scratch,
            y + c * units(range.count) + range.first * (kQueries / kPerUnit) * 16 * vectors, tile);
      }
    }
  }
};

} // namespace pentatron::kernels::attention_detail
