#include "pentatron/kernels/gemm/gemm_simd.h"

#if defined(__x86_64__)

#include "pentatron/kernels/gemm/avx2.h"
#include "pentatron/kernels/gemm/blocked_gemm.h"

namespace pentatron::kernels::gemm_detail {
namespace {

template <class T> class Avx2Gemm : public BlockedGemm<Avx2Gemm<T>> {
 public:
  using Packing = avx2::Packing<T>;
  static constexpr int64_t kElement = sizeof(T);
  static constexpr int64_t kPerStep = 1;
  static constexpr int64_t kUnits = 1;
  static constexpr bool kPad = false;
  // A block of A (kMaxRows x kMaxSteps, 8 of 6 rows) stays in the second-level cache and a panel of
  // B in the first.
  static constexpr int64_t kMaxSteps = 384;
  static constexpr int64_t kMaxRows = 16 * avx2::kMr;
  static constexpr int64_t kMaxColumns = 1024;
  static constexpr int64_t kRowStep = 1;
  static constexpr double kPackCost = 24;
  static constexpr double kWorkOfAThread = 1 << 18;
  struct Thread {};

  using Base = BlockedGemm<Avx2Gemm<T>>;
  using Base::Base;
  using typename Base::Block;

  bool thin() const { return g_.m <= avx2::kThinTile && g_.transpose_b; }
  int64_t max_rows() const { return kMaxRows; }
  int64_t a_bytes() const {
    return thin() ? g_.m * g_.k * 4 : (kMaxRows / avx2::kMr + 1) * panel_units() * 4;
  }

  /// Packs the block's rows of A and runs the tiles.
  void block(Thread&, const Block& x) const {
    constexpr int kWidth = 2 * avx2::kLanes;
    const Split tiles{x.rows, ceil_div(x.rows, avx2::kMr)};
    const int64_t steps = k_blocks_.size(x.q);
    pack_a(x, tiles);
    const auto* const b = reinterpret_cast<const float*>(x.b);
    for (int64_t j = 0; j < x.columns; j += kWidth) {
      const int width = static_cast<int>(std::min<int64_t>(kWidth, x.columns - j));
      for (int64_t t = 0; t < tiles.parts; ++t) {
        avx2::find_micro_kernel(static_cast<int>(tiles.size(t)), width > avx2::kLanes ? 2 : 1)(
            steps, panel_of_a(x, t), b + j * steps, this->tile_out(x, tiles.begin(t), j, width));
      }
    }
  }

  /// A block of few rows, with B as it lies in memory. All of k for some columns, so that memory is
  /// read in its order.
  void thin_block(Thread&, Block x) const {
    constexpr int kWidth = 2 * avx2::kLanes;
    const auto rows = static_cast<int>(x.rows);
    auto* const a = reinterpret_cast<float*>(x.a);
    if (x.new_rows) widen_a(x, a);
    const char* const b = this->b_item(x.item) + x.j * g_.ldb * kElement;
    for (int64_t j = 0; j < x.columns; j += kWidth) {
      const int width = static_cast<int>(std::min<int64_t>(kWidth, x.columns - j));
      const avx2::ThinKernel kernel = avx2::find_thin_kernel<T>(rows, width > avx2::kLanes ? 2 : 1);
      const char* const next = b + (j + kWidth) * g_.ldb * kElement; // the columns that follow
      for (x.q = 0; x.q < k_blocks_.parts; ++x.q) {
        const int64_t k0 = this->first_k(x.q);
        kernel(this->size_k(x.q), a + k0 * rows, b + (j * g_.ldb + k0) * kElement, g_.ldb,
               next + k0 * kWidth * kElement, this->tile_out(x, 0, j, width));
      }
    }
  }

 private:
  using Base::g_;
  using Base::k_blocks_;

  /// Of a tile of A and the largest block of k.
  int64_t panel_units() const { return this->steps_ * avx2::kLanes; }
  const float* panel_of_a(const Block& x, int64_t tile) const {
    return reinterpret_cast<const float*>(x.a + tile * panel_units());
  }

  /// dst[k][row]: the block's rows of op(A), all of k.
  void widen_a(const Block& x, float* dst) const {
    const auto* const src = reinterpret_cast<const T*>(this->a_item(x.item));
    const int64_t row = g_.transpose_a ? 1 : g_.lda, step = g_.transpose_a ? g_.lda : 1;
    for (int64_t i = 0; i < x.rows; ++i) {
      const T* const from = src + (x.i + i) * row;
      for (int64_t s = 0; s < g_.k; ++s) dst[s * x.rows + i] = to_acc(from[s * step]);
    }
  }

  /// A block of op(A), a panel for each tile.
  void pack_a(const Block& x, const Split& tiles) const {
    std::array<Strip, kMaxRows / avx2::kMr + 1> strips;
    for (int64_t t = 0; t < tiles.parts; ++t) {
      strips[static_cast<size_t>(t)] = {.offset = x.i + tiles.begin(t),
                                        .lanes = static_cast<int>(tiles.size(t)),
                                        .stride = avx2::kLanes,
                                        .dst = x.a + t * panel_units()};
    }
    this->pack(this->a_item(x.item), g_.lda, !g_.transpose_a, x.q, strips.data(),
               static_cast<int>(tiles.parts));
  }
};

} // namespace

std::string refuse_avx2(const GemmArgs& g, const Context& context) {
  if (!cpu_features().avx2) return "needs AVX2 and FMA";
  if (g.in_dtype == DType::kFloat32 && g.out_dtype == DType::kFloat32)
    return refuse_common(g, context);
  if (g.in_dtype == DType::kFloat16) return refuse_fp16(g, context);
  if (g.in_dtype != DType::kBFloat16) return "supports float32, bfloat16 and float16 only";
  return refuse_bf16(g, context);
}

void run_avx2(const GemmArgs& g, const Context&) {
  visit_float_dtype(g.in_dtype, [&]<class T>(T) { Avx2Gemm<T>(g).run(); });
}

} // namespace pentatron::kernels::gemm_detail

#else // not x86-64

namespace pentatron::kernels::gemm_detail {

std::string refuse_avx2(const GemmArgs&, const Context&) {
  return "needs an x86-64 processor";
}
void run_avx2(const GemmArgs&, const Context&) {}

} // namespace pentatron::kernels::gemm_detail

#endif
