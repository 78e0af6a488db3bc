#include "pentatron/kernels/gemm/gemm_simd.h"

#if defined(__x86_64__)

#if defined(__GNUC__) && !defined(__clang__)
// g++ 12 warns of its own intrinsics (its bug 105593), also in templates that are compiled at the
// end of the file.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

#include "pentatron/kernels/gemm/avx512.h"
#include "pentatron/kernels/gemm/blocked_gemm.h"

namespace pentatron::kernels::gemm_detail {
namespace {

template <bool kPairs> class Avx512Gemm : public BlockedGemm<Avx512Gemm<kPairs>> {
 public:
  static constexpr bool kPair = kPairs;
  using Packing = Avx512Packing<kPair>;
  static constexpr int64_t kElement = kPair ? 2 : 4;
  static constexpr int64_t kPerStep = kPair ? 2 : 1;
  static constexpr int64_t kUnits = 1;
  static constexpr bool kPad = false;
  // A block of A (kMaxRows x kMaxSteps units) stays in the second-level cache while the panels of B
  // pass by.
  static constexpr int64_t kMaxSteps = 768;
  static constexpr int64_t kMaxRows = 12 * kMr;
  static constexpr int64_t kMaxColumns = 1024;
  static constexpr int64_t kRowStep = 1;
  static constexpr double kPackCost = 48;
  static constexpr double kWorkOfAThread = 1 << 18;
  struct Thread {};

  using Base = BlockedGemm<Avx512Gemm<kPairs>>;
  using Base::Base;
  using typename Base::Block;

  bool thin() const { return g_.m <= kThinTile && g_.transpose_b; }
  int64_t max_rows() const { return kMaxRows; }
  int64_t a_bytes() const { return kMaxRows * this->steps_ * 4 + 64; }

  /// Packs the block's rows of A and runs the tiles.
  void block(Thread&, const Block& x) const {
    const Split tiles{x.rows, ceil_div(x.rows, kMr)};
    const int64_t steps = k_blocks_.size(x.q);
    pack_a(x, tiles);
    for (int64_t j = 0; j < x.columns; j += kNr) {
      const int width = static_cast<int>(std::min<int64_t>(kNr, x.columns - j));
      for (int64_t t = 0; t < tiles.parts; ++t) {
        const int64_t i = tiles.begin(t);
        find_micro_kernel<kPair>(static_cast<int>(tiles.size(t)), width > 16 ? 2 : 1)(
            steps, x.a + i * steps, x.b + j * steps, this->tile_out(x, i, j, width));
      }
    }
  }

  /// A block of few rows, with B as it lies in memory.
  void thin_block(Thread&, Block x) const {
    const ThinKernel kernel = find_thin_kernel<kPair>(static_cast<int>(x.rows));
    for (x.q = 0; x.q < k_blocks_.parts; ++x.q) {
      pack_a(x, Split{x.rows, 1});
      const auto* const b = this->b_item(x.item) + (x.j * g_.ldb + this->first_k(x.q)) * kElement;
      for (int64_t j = 0; j < x.columns; j += 16) {
        const int width = static_cast<int>(std::min<int64_t>(16, x.columns - j));
        kernel(this->size_k(x.q), x.a, b + j * g_.ldb * kElement, g_.ldb,
               this->tile_out(x, 0, j, width));
      }
    }
  }

 private:
  using Base::g_;
  using Base::k_blocks_;

  /// A block of op(A) in panels of the tiles' heights.
  void pack_a(const Block& x, const Split& tiles) const {
    std::array<Strip, kMaxRows / kMr + 1> strips;
    for (int64_t t = 0; t < tiles.parts; ++t) {
      const int lanes = static_cast<int>(tiles.size(t));
      strips[static_cast<size_t>(t)] = {x.i + tiles.begin(t), lanes, lanes,
                                        x.a + tiles.begin(t) * k_blocks_.size(x.q)};
    }
    this->pack(this->a_item(x.item), g_.lda, !g_.transpose_a, x.q, strips.data(),
               static_cast<int>(tiles.parts));
  }
};

} // namespace

std::string refuse_avx512(const GemmArgs& g, const Context& context) {
  if (!cpu_features().avx512) return "needs AVX-512 (F, BW, DQ, VL)";
  if (g.in_dtype != DType::kFloat32 || g.out_dtype != DType::kFloat32)
    return "supports float32 only";
  return refuse_common(g, context);
}

std::string refuse_avx512_bf16(const GemmArgs& g, const Context& context) {
  if (!cpu_features().avx512_bf16) return "needs AVX512-BF16";
  return refuse_bf16(g, context);
}

void run_avx512(const GemmArgs& g, const Context&) {
  Avx512Gemm<false>(g).run();
}
void run_avx512_bf16(const GemmArgs& g, const Context&) {
  Avx512Gemm<true>(g).run();
}

} // namespace pentatron::kernels::gemm_detail

#else // not x86-64

namespace pentatron::kernels::gemm_detail {

std::string refuse_avx512(const GemmArgs&, const Context&) {
  return "needs an x86-64 processor";
}
std::string refuse_avx512_bf16(const GemmArgs&, const Context&) {
  return "needs an x86-64 processor";
}
void run_avx512(const GemmArgs&, const Context&) {}
void run_avx512_bf16(const GemmArgs&, const Context&) {}

} // namespace pentatron::kernels::gemm_detail

#endif
