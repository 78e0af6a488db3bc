#include "pentatron/kernels/gemm/gemm_simd.h"

#if defined(__x86_64__)

#if defined(__GNUC__) && !defined(__clang__)
// g++ 12 warns of its own intrinsics (its bug 105593), also in templates that are compiled at the
// end of the file.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

#include <algorithm>
#include <array>
#include <cstring>

#include <omp.h>

#include "pentatron/kernels/common/scalar.h"
#include "pentatron/kernels/gemm/avx512.h"
#include "pentatron/kernels/gemm/pack_buffer.h"

namespace pentatron::kernels::gemm_detail {
namespace {

// Sizes of blocks. A block of A (kMaxRows x kMaxSteps units) stays in the second-level cache while
// the panels of B pass by.
constexpr int64_t kMaxSteps = 768;     // units of k in a block
constexpr int64_t kMaxRows = 12 * kMr; // rows of A in a block
constexpr int64_t kMaxColumns = 1024;  // columns of B in a block
constexpr int64_t kMaxColumnsThin =
    128; // the same for few rows, where B is used once and must not leave the cache
constexpr int64_t kThinRows = 64;

constexpr int64_t ceil_div(int64_t x, int64_t y) {
  return (x + y - 1) / y;
}
constexpr int64_t round_up(int64_t x, int64_t y) {
  return ceil_div(x, y) * y;
}

/// `total` cut into `parts` of nearly equal size; begin(i)..begin(i + 1) is part i.
struct Split {
  int64_t total;
  int64_t parts;
  int64_t begin(int64_t i) const { return i * (total / parts) + std::min(i, total % parts); }
  int64_t size(int64_t i) const { return begin(i + 1) - begin(i); }
};

struct Grid {
  int64_t rows = 1;
  int64_t columns = 1;
};

/// Splits C among threads: the least work of the busiest one, counting multiplications and packed
/// elements.
Grid choose_grid(const GemmArgs& g, int threads) {
  constexpr double kPackCost = 48; // multiplications in the time of packing an element
  Grid best;
  double best_cost = 0;
  for (int64_t rows = 1; rows <= threads; ++rows) {
    const int64_t columns = threads / rows;
    const auto m = static_cast<double>(ceil_div(g.m, rows));
    const auto n = static_cast<double>(ceil_div(ceil_div(g.n, kNr), columns) * kNr);
    const double cost =
        m * n +
        kPackCost * (m * static_cast<double>(ceil_div(static_cast<int64_t>(n), kMaxColumns)) + n);
    if (rows == 1 || cost < best_cost) {
      best = {rows, columns};
      best_cost = cost;
    }
  }
  return best;
}

template <bool kPair> class Gemm {
 public:
  explicit Gemm(const GemmArgs& args) : g_(args), units_(kPair ? ceil_div(args.k, 2) : args.k) {
    // Blocks of k depend on k alone, so that the order of sums does.
    k_blocks_ = Split{units_, std::max<int64_t>(1, ceil_div(units_, kMaxSteps))};
    max_columns_ = g_.m <= kThinRows ? kMaxColumnsThin : kMaxColumns;
    steps_ = ceil_div(units_, k_blocks_.parts);
  }

  void run(int threads) {
    const bool scratch = g_.out_dtype == DType::kBFloat16 && k_blocks_.parts > 1;
    const bool over_batch = g_.batch >= threads;
    const Grid grid = over_batch ? Grid{} : choose_grid(g_, threads);
    const int64_t workers =
        over_batch ? std::min<int64_t>(threads, g_.batch) : grid.rows * grid.columns;
    a_bytes_ = round_up(kMaxRows * steps_ * 4 + 64, 4096);
    b_bytes_ = round_up(std::min(max_columns_, round_up(g_.n, kNr)) * steps_ * 4, 4096);
    scratch_rows_ = scratch ? std::min<int64_t>(g_.m, kScratchRows) : g_.m;
    const int64_t scratch_bytes = scratch ? scratch_rows_ * max_columns_ * 4 : 0;
    const int64_t bias_bytes = g_.bias != nullptr ? max_columns_ * 4 : 0;
    bias_offset_ = a_bytes_ + b_bytes_;
    scratch_offset_ = bias_offset_ + bias_bytes;
    const int64_t each = round_up(scratch_offset_ + scratch_bytes, 4096) +
                         256; // not a multiple of the page: no aliasing
    const PackBuffer buffer(static_cast<size_t>(each * workers));
    if (workers == 1) {
      for (int64_t item = 0; item < g_.batch; ++item) region(buffer.data(), item, 0, g_.m, 0, g_.n);
      return;
    }
#pragma omp parallel num_threads(static_cast <int>(workers))
    {
      // The runtime may give fewer threads than asked for.
      for (int64_t w = omp_get_thread_num(); w < workers; w += omp_get_num_threads()) {
        std::byte* const mine = buffer.data() + w * each;
        if (over_batch) {
          for (int64_t item = w; item < g_.batch; item += workers)
            region(mine, item, 0, g_.m, 0, g_.n);
        } else {
          const Split rows{g_.m, grid.rows};
          const Split panels{ceil_div(g_.n, kNr), grid.columns};
          const int64_t r = w % grid.rows;
          const int64_t c = w / grid.rows;
          for (int64_t item = 0; item < g_.batch; ++item) {
            region(mine, item, rows.begin(r), rows.begin(r + 1), panels.begin(c) * kNr,
                   std::min(g_.n, panels.begin(c + 1) * kNr));
          }
        }
      }
    }
  }

 private:
  static constexpr int64_t kElement = kPair ? 2 : 4;
  static constexpr int64_t kPerUnit = kPair ? 2 : 1;
  static constexpr int64_t kScratchRows = 1024;

  /// One thread's part of one product: rows [m0, m1) and columns [n0, n1) of C.
  void region(std::byte* buffer, int64_t item, int64_t m0, int64_t m1, int64_t n0,
              int64_t n1) const {
    for (int64_t j = n0; j < n1; j += max_columns_) {
      const int64_t columns = std::min(max_columns_, n1 - j);
      if (g_.bias != nullptr)
        load_bias(reinterpret_cast<float*>(buffer + bias_offset_), j, columns);
      for (int64_t i = m0; i < m1; i += scratch_rows_) {
        const int64_t rows = std::min(scratch_rows_, m1 - i);
        for (int64_t q = 0; q < k_blocks_.parts; ++q) {
          if (g_.m <= kThinTile && g_.transpose_b) {
            thin_block(buffer, item, i, rows, j, columns, q);
            continue;
          }
          pack_b(reinterpret_cast<uint32_t*>(buffer + a_bytes_), item, j, columns, q);
          const Split blocks{rows, ceil_div(rows, kMaxRows)};
          for (int64_t r = 0; r < blocks.parts; ++r) {
            block(buffer, item, i, i + blocks.begin(r), blocks.size(r), j, columns, q);
          }
        }
      }
    }
  }

  /// A block of C: packs its rows of A and runs the tiles.
  void block(std::byte* buffer, int64_t item, int64_t scratch_row, int64_t i0, int64_t rows,
             int64_t j0, int64_t columns, int64_t q) const {
    auto* const a = reinterpret_cast<uint32_t*>(buffer);
    const auto* const b = reinterpret_cast<const uint32_t*>(buffer + a_bytes_);
    const Split tiles{rows, ceil_div(rows, kMr)};
    const int64_t steps = k_blocks_.size(q);
    pack_a(a, item, i0, tiles, q);
    for (int64_t j = 0; j < columns; j += kNr) {
      const int width = static_cast<int>(std::min<int64_t>(kNr, columns - j));
      for (int64_t t = 0; t < tiles.parts; ++t) {
        const int64_t i = tiles.begin(t);
        const TileOut out = tile_out(buffer, item, scratch_row, i0 + i, j0, j, width, q);
        find_micro_kernel<kPair>(static_cast<int>(tiles.size(t)),
                                 width > 16 ? 2 : 1)(steps, a + i * steps, b + j * steps, out);
      }
    }
  }

  /// A block of C of few rows, with B as it lies in memory.
  void thin_block(std::byte* buffer, int64_t item, int64_t i0, int64_t rows, int64_t j0,
                  int64_t columns, int64_t q) const {
    auto* const a = reinterpret_cast<uint32_t*>(buffer);
    pack_a(a, item, i0, Split{rows, 1}, q);
    const int64_t k0 = k_blocks_.begin(q) * kPerUnit;
    const int64_t k = std::min(g_.k, k_blocks_.begin(q + 1) * kPerUnit) - k0;
    const auto* const b =
        static_cast<const char*>(g_.b) + (item * g_.stride_b + j0 * g_.ldb + k0) * kElement;
    const ThinKernel kernel = find_thin_kernel<kPair>(static_cast<int>(rows));
    for (int64_t j = 0; j < columns; j += 16) {
      const int width = static_cast<int>(std::min<int64_t>(16, columns - j));
      kernel(k, a, b + j * g_.ldb * kElement, g_.ldb,
             tile_out(buffer, item, i0, i0, j0, j, width, q));
    }
  }

  TileOut tile_out(std::byte* buffer, int64_t item, int64_t scratch_row, int64_t i, int64_t j0,
                   int64_t j, int width, int64_t q) const {
    const bool first = q == 0;
    const bool last = q + 1 == k_blocks_.parts;
    const int64_t index = item * g_.stride_c + i * g_.ldc + j0 + j;
    TileOut t;
    t.columns = width;
    if (last && g_.bias != nullptr)
      t.bias = reinterpret_cast<const float*>(buffer + bias_offset_) + j;
    if (g_.out_dtype == DType::kFloat32) {
      t.out = static_cast<float*>(g_.c) + index;
      t.ld_in = t.ld_out = g_.ldc;
      if (!first || g_.accumulate) t.in = t.out;
      return t;
    }
    float* const scratch =
        reinterpret_cast<float*>(buffer + scratch_offset_) + (i - scratch_row) * max_columns_ + j;
    t.ld_in = max_columns_;
    if (!first) t.in = scratch;
    if (!last) {
      t.out = scratch;
      t.ld_out = max_columns_;
      return t;
    }
    t.out16 = static_cast<uint16_t*>(g_.c) + index;
    t.ld_out = g_.ldc;
    if (g_.accumulate) t.in16 = t.out16;
    return t;
  }

  /// A block of op(A) in panels of the tiles' heights.
  void pack_a(uint32_t* dst, int64_t item, int64_t i0, const Split& tiles, int64_t q) const {
    std::array<Strip, kMaxRows / kMr + 1> strips;
    for (int64_t t = 0; t < tiles.parts; ++t) {
      const int lanes = static_cast<int>(tiles.size(t));
      strips[t] = {i0 + tiles.begin(t), lanes, lanes, dst + tiles.begin(t) * k_blocks_.size(q)};
    }
    const auto* const a = static_cast<const char*>(g_.a) + item * g_.stride_a * kElement;
    pack(a, g_.lda, !g_.transpose_a, q, strips.data(), static_cast<int>(tiles.parts));
  }

  /// A block of op(B) in panels of 32 lanes; the last has 16 when at most 16 columns are left.
  void pack_b(uint32_t* dst, int64_t item, int64_t j0, int64_t columns, int64_t q) const {
    std::array<Strip, kMaxColumns / 16> strips;
    int count = 0;
    for (int64_t j = 0; j < columns; j += 16) {
      const int64_t panel = j / kNr * kNr;
      strips[count++] = {j0 + j, static_cast<int>(std::min<int64_t>(16, columns - j)),
                         columns - panel > 16 ? kNr : 16,
                         dst + panel * k_blocks_.size(q) + (j - panel)};
    }
    const auto* const b = static_cast<const char*>(g_.b) + item * g_.stride_b * kElement;
    pack(b, g_.ldb, g_.transpose_b, q, strips.data(), count);
  }

  /// Packs block q of k; `along`: k runs along the rows of memory.
  void pack(const char* src, int64_t ld, bool along, int64_t q, const Strip* strips,
            int count) const {
    const int64_t k0 = k_blocks_.begin(q) * kPerUnit;
    const int64_t k = std::min(g_.k, k_blocks_.begin(q + 1) * kPerUnit) - k0;
    if (!along) return pack_across<kPair>(src + k0 * ld * kElement, ld, k, strips, count);
    for (int i = 0; i < count; ++i) pack_along<kPair>(src + k0 * kElement, ld, k, strips[i]);
  }

  /// The bias may lie at any address.
  void load_bias(float* dst, int64_t j0, int64_t columns) const {
    const auto* const src = static_cast<const char*>(g_.bias);
    if (g_.bias_dtype == DType::kFloat32) {
      std::memcpy(dst, src + 4 * j0, static_cast<size_t>(columns) * 4);
      return;
    }
    for (int64_t j = 0; j < columns; ++j) {
      bf16 x;
      std::memcpy(&x, src + 2 * (j0 + j), 2);
      dst[j] = to_acc(x);
    }
  }

  GemmArgs g_;
  int64_t units_;
  Split k_blocks_{0, 1};
  int64_t steps_ = 0;
  int64_t max_columns_ = 0;
  int64_t scratch_rows_ = 0;
  int64_t a_bytes_ = 0;
  int64_t b_bytes_ = 0;
  int64_t bias_offset_ = 0;
  int64_t scratch_offset_ = 0;
};

/// Threads worth starting: each needs enough multiplications to pay for its start.
int threads_for(const GemmArgs& g) {
  if (omp_in_parallel()) return 1;
  constexpr double kWorkOfAThread = 1 << 18;
  const double work = static_cast<double>(g.m) * static_cast<double>(g.n) *
                      static_cast<double>(g.k) * static_cast<double>(g.batch);
  return static_cast<int>(
      std::clamp(work / kWorkOfAThread, 1.0, static_cast<double>(num_threads())));
}

std::string refuse(const GemmArgs& g, const Context& context) {
  if (context.device != Device::kCpu) return "needs CPU memory";
  if (g.bias != nullptr && g.bias_dtype != DType::kFloat32 && g.bias_dtype != DType::kBFloat16) {
    return "bias must be float32 or bfloat16";
  }
  return {};
}

} // namespace

std::string refuse_avx512(const GemmArgs& g, const Context& context) {
  if (!cpu_features().avx512) return "needs AVX-512 (F, BW, DQ, VL)";
  if (g.in_dtype != DType::kFloat32 || g.out_dtype != DType::kFloat32) return "takes float32 only";
  return refuse(g, context);
}

std::string refuse_avx512_bf16(const GemmArgs& g, const Context& context) {
  if (!cpu_features().avx512_bf16) return "needs AVX512-BF16";
  if (g.in_dtype != DType::kBFloat16) return "takes bfloat16 inputs only";
  if (g.out_dtype != DType::kFloat32 && g.out_dtype != DType::kBFloat16)
    return "gives float32 or bfloat16 only";
  return refuse(g, context);
}

void run_avx512(const GemmArgs& g, const Context&) {
  Gemm<false>(g).run(threads_for(g));
}
void run_avx512_bf16(const GemmArgs& g, const Context&) {
  Gemm<true>(g).run(threads_for(g));
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
