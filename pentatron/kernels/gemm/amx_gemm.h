/// The GEMM of bf16 in tiles: what BlockedGemm needs, over any type of tiles (common/tile.h).
#pragma once

#include "pentatron/kernels/gemm/blocked_gemm.h"
#include "pentatron/kernels/gemm/tiles.h"

namespace pentatron::kernels::gemm_detail {

/// Order of sums: of a block of k, the dots of 32 k each (common/tile.h) are added in order to 0.
template <class Tiles> class AmxGemm : public BlockedGemm<AmxGemm<Tiles>> {
 public:
  using Packing = Avx512Packing<true>;
  static constexpr int64_t kElement = 2;
  static constexpr int64_t kPerStep = kTileK;
  static constexpr int64_t kUnits = kStepUnits;
  static constexpr bool kPad = true;
  // A block of A (at most kBlockBytes) stays in the second-level cache (2 MiB), while the panels of
  // B pass by from the third. kPanelSteps of a panel of B stay in the first-level cache, while the
  // rows of A pass by. So the sums of a panel are kept meanwhile, also in the second-level cache.
  static constexpr int64_t kMaxSteps = 48;
  static constexpr int64_t kPanelSteps = 20;
  static constexpr int64_t kBlockBytes = 896 << 10;
  static constexpr int64_t kMaxRows = 640;
  static constexpr int64_t kMaxColumns = 768;
  static constexpr int64_t kRowStep = 2 * kTileRows;
  static constexpr double kPackCost = 80; // 512 elements in 80 cycles, which are 80 x 512 products
  static constexpr double kWorkOfAThread = 1 << 20;
  using Thread = Tiles;

  using Base = BlockedGemm<AmxGemm<Tiles>>;
  using Base::Base;
  using typename Base::Block;

  bool thin() const { return g_.m <= kThinRows && g_.transpose_b; }
  int64_t max_rows() const {
    const int64_t rows = kBlockBytes / (std::max<int64_t>(1, this->steps_) * kStepUnits * 4);
    return std::min(kMaxRows, rows / kRowStep * kRowStep);
  }
  int64_t a_bytes() const {
    if (thin())
      return this->steps_of_k_ * panel_step_bytes() + kEdgeTiles * this->steps_ * kTileBytes;
    return sums_offset() + max_rows() / kRowStep * int64_t{sizeof(Sums)};
  }

  /// Packs the block's rows of A as rows tiles, and multiplies them by the panels of B.
  void block(Tiles& tiles, const Block& x) const {
    const int64_t steps = k_blocks_.size(x.q);
    const Split panels{steps, std::max<int64_t>(1, ceil_div(steps, kPanelSteps))};
    pack_a(x);
    auto* const sums = reinterpret_cast<float*>(x.a) + sums_offset() / 4;
    for (int64_t j = 0; j < x.columns; j += kNr) {
      const int width = static_cast<int>(std::min<int64_t>(kNr, x.columns - j));
      for (int64_t p = 0; p < panels.parts; ++p) {
        const TileGrid b = packed_pairs(x.b + (j * steps + panels.begin(p) * kNr) * kUnits);
        for (int64_t i = 0; i < x.rows; i += kRowStep) {
          const int64_t rows = std::min(kRowStep, x.rows - i);
          const TileGrid a =
              packed_rows(x.a + (i / kTileRows * steps + panels.begin(p)) * kTileUnits, steps);
          float* const tile = sums + i * kSumsColumns;
          const auto multiply = p == 0 ? multiply_tiles<false, Tiles> : multiply_tiles<true, Tiles>;
          const bool last = p + 1 == panels.parts;
          const TileOut out = last ? this->tile_out(x, i, j, width) : TileOut{};
          if (last && !out.stream) prefetch_out(out, rows);
          multiply(tiles, count_tiles(rows), count_tiles(width), panels.size(p), a, b, tile,
                   kSumsColumns * int64_t{sizeof(float)});
          if (last) finish_rows(tile, rows, out);
        }
      }
    }
  }

  /// Few rows of A and rows of memory that are columns of op(B): C^T = B^T A^T, with B as it lies
  /// in memory for the rows tiles, so that it is read once and never packed. A becomes the pairs
  /// tiles. The order of sums is that of block().
  void thin_block(Tiles& tiles, Block x) const {
    for (x.q = 0; x.q < k_blocks_.parts; ++x.q) thin_step(tiles, x);
  }

 private:
  using Base::g_;
  using Base::k_blocks_;
  static constexpr int64_t kEdgeTiles = 2; // of a step, where B does not fill whole tiles

  /// Of one block of k.
  void thin_step(Tiles& tiles, const Block& x) const {
    const int64_t steps = k_blocks_.size(x.q);
    uint32_t* const pairs = x.a + k_blocks_.begin(x.q) * panel_step_bytes() / 4;
    if (x.new_rows) {
      this->pack_panels(this->a_item(x.item), g_.lda, !g_.transpose_a, x.i, x.rows, x.q, pairs);
    }
    alignas(64) Sums transposed, sums;
    for (int64_t j = 0; j < x.columns; j += kNr) {
      const int width = static_cast<int>(std::min<int64_t>(kNr, x.columns - j));
      const TileGrid b = rows_of_b(x, j, width);
      for (int64_t i = 0; i < x.rows; i += kNr) {
        const int64_t rows = std::min<int64_t>(kNr, x.rows - i);
        multiply_tiles<false>(tiles, count_tiles(width), count_tiles(rows), steps, b,
                              packed_pairs(pairs + i * steps * kUnits), transposed,
                              kSumsColumns * int64_t{sizeof(float)});
        transpose_sums(transposed, sums);
        finish_rows(sums, rows, this->tile_out(x, i, j, width));
      }
    }
  }

  static int count_tiles(int64_t lanes) { return lanes > kTileRows ? 2 : 1; }
  static TileGrid packed_rows(const uint32_t* data, int64_t steps) {
    return {data, 64, steps * kTileBytes, kTileBytes};
  }
  static TileGrid packed_pairs(const uint32_t* data) { return {data, 128, 64, 2 * kTileBytes}; }
  /// Where the sums of a panel lie, behind the packed A.
  int64_t sums_offset() const { return max_rows() / kTileRows * this->steps_ * kTileBytes; }
  /// Of the pairs tiles of all rows and one step, if thin.
  int64_t panel_step_bytes() const { return ceil_div(g_.m, kNr) * 2 * kTileBytes; }

  void pack_a(const Block& x) const {
    const char* const a = this->a_item(x.item);
    const int64_t k0 = this->first_k(x.q), k = this->size_k(x.q), steps = k_blocks_.size(x.q);
    if (g_.transpose_a)
      return pack_rows_across(a + (k0 * g_.lda + x.i) * 2, g_.lda, k, x.rows, x.a);
    for (int64_t i = 0; i < x.rows; i += kTileRows) {
      pack_rows_along(a + ((x.i + i) * g_.lda + k0) * 2, g_.lda, k,
                      static_cast<int>(std::min<int64_t>(kTileRows, x.rows - i)),
                      x.a + i / kTileRows * steps * kTileUnits);
    }
  }

  /// The rows tiles of `width` columns of op(B): in memory if they fill whole tiles, else a copy
  /// behind the packed A.
  TileGrid rows_of_b(const Block& x, int64_t j, int width) const {
    const int64_t k = this->size_k(x.q), steps = k_blocks_.size(x.q), row_bytes = g_.ldb * 2;
    const char* const b = this->b_item(x.item) + ((x.j + j) * g_.ldb + this->first_k(x.q)) * 2;
    if (width % kTileRows == 0 && k % kTileK == 0)
      return {b, row_bytes, kTileRows * row_bytes, 2 * kTileK};
    uint32_t* const edge = x.a + this->steps_of_k_ * panel_step_bytes() / 4;
    for (int i = 0; i < width; i += kTileRows) {
      pack_rows_along(b + i * row_bytes, g_.ldb, k, std::min(kTileRows, width - i),
                      edge + i / kTileRows * steps * kTileUnits);
    }
    return packed_rows(edge, steps);
  }
};

} // namespace pentatron::kernels::gemm_detail
