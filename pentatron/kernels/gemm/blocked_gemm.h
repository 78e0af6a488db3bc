/// Blocks for the caches, threads and order of sums of a GEMM, around packing and micro-kernels
/// that a derived class gives.
///
/// Derived is constructed from GemmArgs and has
///   Packing         kLanes, along() and across() (avx512.h); tiles have 2 kLanes columns
///   kElement        bytes of an element of A and B
///   kPerStep        elements of k in a step: blocks of k are whole steps
///   kUnits          32-bit units of a step in a packed panel
///   kPad            panels are filled with zeros: all columns, whole steps
///   kMaxSteps, kMaxColumns   sizes of blocks: steps of k, columns of B
///   max_rows()      of a block of A
///   kRowStep        blocks of rows are multiples of it
///   kPackCost       multiplications in the time of packing an element
///   kWorkOfAThread  multiplications that pay for the start of a thread
///   Thread          what a thread holds while it works (default-constructed)
///   thin()          whether thin_block() is used: op(B) is not packed
///   a_bytes()       of the buffer of packed op(A)
///   block(), thin_block()   see region(): one block of k, all blocks of k
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <utility>

#include <omp.h>

#include "pentatron/kernels/common/scalar.h"
#include "pentatron/kernels/gemm/gemm.h"
#include "pentatron/kernels/gemm/pack_buffer.h"
#include "pentatron/kernels/gemm/panels.h"

namespace pentatron::kernels::gemm_detail {

constexpr int64_t kMaxColumnsThin =
    128; // columns of B in a block for few rows, where B is used once and must not leave the cache
constexpr int64_t kThinRows = 64;
/// Bytes of op(B) that pay for the start of a thread: some 20 us from memory.
constexpr double kBytesOfAThread = 1 << 18;
constexpr int64_t kPartsOfAThread = 8; ///< of a product of few rows, if there are enough columns

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

/// Columns of a tile of C and of a packed panel of op(B).
template <class Derived> constexpr int64_t kTileColumns = 2 * Derived::Packing::kLanes;

/// How C is split among threads.
struct Parts {
  Grid grid;
  bool lower = false; ///< rows, each with the columns up to its last row's diagonal
};

/// The least work of the busiest thread, counting multiplications and packed elements.
template <class Derived> Parts choose_parts(const GemmArgs& g, int threads) {
  constexpr int64_t kTile = kTileColumns<Derived>;
  Grid best;
  double best_cost = 0;
  for (int64_t rows = 1; rows <= threads; ++rows) {
    const int64_t columns = threads / rows;
    const auto m = static_cast<double>(round_up(ceil_div(g.m, rows), Derived::kRowStep));
    const auto n = static_cast<double>(ceil_div(ceil_div(g.n, kTile), columns) * kTile);
    const double cost =
        m * n +
        Derived::kPackCost *
            (m * static_cast<double>(ceil_div(static_cast<int64_t>(n), Derived::kMaxColumns)) + n);
    if (rows == 1 || cost < best_cost) {
      best = {rows, columns};
      best_cost = cost;
    }
  }
  const auto n = static_cast<double>(g.n);
  if (g.lower && n * n / (2.0 * threads) + Derived::kPackCost * n < best_cost)
    return {{threads, 1}, true};
  return {best};
}

/// The first of `parts` parts of the rows of a lower triangle that begins with row begin(i), all of
/// equal area; multiples of `step`.
struct TriangleSplit {
  int64_t rows, parts, step;
  int64_t begin(int64_t i) const {
    if (i == parts) return rows;
    const double share = static_cast<double>(i) / static_cast<double>(parts);
    return std::min(rows,
                    round_up(std::llround(static_cast<double>(rows) * std::sqrt(share)), step));
  }
};

template <class Derived> class BlockedGemm {
 public:
  explicit BlockedGemm(const GemmArgs& args)
      : g_(args), steps_of_k_(ceil_div(args.k, Derived::kPerStep)) {
    // Blocks of k depend on k alone, so that the order of sums does.
    k_blocks_ = Split{steps_of_k_, std::max<int64_t>(1, ceil_div(steps_of_k_, Derived::kMaxSteps))};
    max_columns_ = g_.m <= kThinRows ? kMaxColumnsThin : Derived::kMaxColumns;
    steps_ = ceil_div(steps_of_k_, k_blocks_.parts);
    const bool lines =
        reinterpret_cast<uintptr_t>(g_.c) % 64 == 0 && g_.ldc % 32 == 0 && g_.stride_c % 32 == 0;
    stream_ = lines && !g_.lower && g_.m * g_.n * 4 >= kStreamBytes; // a triangle is read next
  }

  void run() {
    constexpr int64_t kTile = kTileColumns<Derived>;
    const int threads = threads_for();
    if (self().thin()) return run_thin(threads);
    const bool over_batch = g_.batch >= threads;
    const Parts parts = over_batch ? Parts{.lower = g_.lower} : choose_parts<Derived>(g_, threads);
    const Grid grid = parts.grid;
    lower_ = parts.lower;
    const int64_t workers =
        over_batch ? std::min<int64_t>(threads, g_.batch) : grid.rows * grid.columns;
    if (workers == 1) return run_alone();
    const int64_t each = lay_out_buffer();
    const PackBuffer buffer(static_cast<size_t>(each * workers));
#pragma omp parallel num_threads(static_cast <int>(workers))
    {
      typename Derived::Thread thread;
      // The runtime may give fewer threads than asked for.
      for (int64_t w = omp_get_thread_num(); w < workers; w += omp_get_num_threads()) {
        std::byte* const mine = buffer.data() + w * each;
        if (over_batch) {
          for (int64_t item = w; item < g_.batch; item += workers)
            region(thread, mine, item, 0, g_.m, 0, g_.n);
        } else {
          if (lower_) {
            const TriangleSplit rows{g_.m, grid.rows, Derived::kRowStep};
            for (int64_t item = 0; item < g_.batch; ++item)
              region(thread, mine, item, rows.begin(w), rows.begin(w + 1), 0, rows.begin(w + 1));
            continue;
          }
          const Split rows{ceil_div(g_.m, Derived::kRowStep), grid.rows};
          const Split panels{ceil_div(g_.n, kTile), grid.columns};
          const int64_t r = w % grid.rows;
          const int64_t c = w / grid.rows;
          for (int64_t item = 0; item < g_.batch; ++item) {
            region(thread, mine, item, rows.begin(r) * Derived::kRowStep,
                   std::min(g_.m, rows.begin(r + 1) * Derived::kRowStep), panels.begin(c) * kTile,
                   std::min(g_.n, panels.begin(c + 1) * kTile));
          }
        }
      }
    }
  }

 protected:
  /// A block of C, its block of k, and the buffers of the thread that computes it.
  struct Block {
    int64_t item = 0;
    int64_t first_row = 0; ///< of the rows that share the scratch
    int64_t i = 0;
    int64_t rows = 0;
    int64_t j = 0;
    int64_t columns = 0;
    int64_t q = 0;            ///< number of the block of k
    bool new_rows = false;    ///< the first block of columns of these rows and this block of k
    uint32_t* a = nullptr;    ///< packed op(A)
    uint32_t* b = nullptr;    ///< packed op(B)
    float* bias = nullptr;    ///< of the columns, if there is a bias
    float* scratch = nullptr; ///< sums of first_row and the block's columns, if they need a place
  };

  /// What becomes of the tile whose first element is (i, j) of the block.
  TileOut tile_out(const Block& block, int64_t i, int64_t j, int width) const {
    const bool first = block.q == 0;
    const bool last = block.q + 1 == k_blocks_.parts;
    const int64_t index = block.item * g_.stride_c + (block.i + i) * g_.ldc + block.j + j;
    TileOut t;
    t.columns = width;
    if (last && g_.bias != nullptr) t.bias = block.bias + j;
    if (g_.out_dtype == DType::kFloat32) {
      t.out = static_cast<float*>(g_.c) + index;
      t.ld_in = t.ld_out = g_.ldc;
      if (!first || g_.accumulate) t.in = t.out;
      t.stream = stream_ && last && t.in == nullptr;
      return t;
    }
    float* const scratch = block.scratch + (block.i + i - block.first_row) * max_columns_ + j;
    t.ld_in = max_columns_;
    if (!first) t.in = scratch;
    if (!last) {
      t.out = scratch;
      t.ld_out = max_columns_;
      return t;
    }
    t.out16 = static_cast<uint16_t*>(g_.c) + index;
    t.fp16 = g_.out_dtype == DType::kFloat16;
    t.ld_out = g_.ldc;
    if (g_.accumulate) t.in16 = t.out16;
    t.stream = stream_ && !g_.accumulate;
    return t;
  }

  int64_t first_k(int64_t q) const {
    return k_blocks_.begin(q) * Derived::kPerStep;
  }
  int64_t size_k(int64_t q) const {
    return std::min(g_.k, k_blocks_.begin(q + 1) * Derived::kPerStep) - first_k(q);
  }
  const char* a_item(int64_t item) const {
    return static_cast<const char*>(g_.a) + item * g_.stride_a * Derived::kElement;
  }
  const char* b_item(int64_t item) const {
    return static_cast<const char*>(g_.b) + item * g_.stride_b * Derived::kElement;
  }

  /// Panels of two vectors of lanes: `count` rows of op(A) or columns of op(B) from `first`, block
  /// q of k. If not padded, the last has one vector when no more are left. `along`: k runs along
  /// the rows of memory.
  void pack_panels(const char* src, int64_t ld, bool along, int64_t first, int64_t count, int64_t q,
                   uint32_t* dst) const {
    constexpr int kLanes = Derived::Packing::kLanes;
    std::array<Strip, Derived::kMaxColumns / kLanes> strips;
    int n = 0;
    for (int64_t j = 0; j < count; j += kLanes) {
      const int64_t panel = j / (2 * kLanes) * (2 * kLanes);
      strips[static_cast<size_t>(n++)] = {
          first + j, static_cast<int>(std::min<int64_t>(kLanes, count - j)),
          Derived::kPad || count - panel > kLanes ? 2 * kLanes : kLanes,
          dst + panel * k_blocks_.size(q) * Derived::kUnits + (j - panel), Derived::kPad};
    }
    pack(src, ld, along, q, strips.data(), n);
  }

  /// Packs block q of k; `along`: k runs along the rows of memory.
  void pack(const char* src, int64_t ld, bool along, int64_t q, const Strip* strips,
            int count) const {
    using Packing = typename Derived::Packing;
    if (!along) {
      return Packing::across(src + first_k(q) * ld * Derived::kElement, ld, size_k(q), strips,
                             count);
    }
    for (int i = 0; i < count; ++i)
      Packing::along(src + first_k(q) * Derived::kElement, ld, size_k(q), strips[i]);
  }

  GemmArgs g_;
  int64_t steps_of_k_;
  Split k_blocks_{0, 1};
  int64_t steps_ = 0; ///< most steps of a block

 private:
  static constexpr int64_t kScratchRows = 1024;
  /// Rows of a block of a triangle: half of rows x rows above the diagonal is computed for each.
  static constexpr int64_t kTriangleRows = 96;
  static constexpr int64_t kStreamBytes = 1 << 20; // of a C that leaves the caches anyway

  const Derived& self() const {
    return static_cast<const Derived&>(*this);
  }

  void run_alone() {
    const PackBuffer buffer(static_cast<size_t>(lay_out_buffer()));
    typename Derived::Thread thread;
    for (int64_t item = 0; item < g_.batch; ++item)
      region(thread, buffer.data(), item, 0, g_.m, 0, g_.n);
  }

  /// Few rows: a thread that has read its columns of op(B) takes the next ones, because memory
  /// serves threads at different speeds.
  void run_thin(int threads) {
    constexpr int64_t kTile = kTileColumns<Derived>;
    const int64_t columns =
        kTile * std::clamp<int64_t>(ceil_div(ceil_div(g_.n, kTile), threads * kPartsOfAThread), 1,
                                    max_columns_ / kTile);
    const int64_t parts = ceil_div(g_.n, columns), all = g_.batch * parts,
                  workers = std::min<int64_t>(threads, all);
    if (workers == 1) return run_alone();
    const int64_t each = lay_out_buffer();
    const PackBuffer buffer(static_cast<size_t>(each * workers));
    std::atomic<int64_t> next = 0;
#pragma omp parallel num_threads(static_cast <int>(workers))
    {
      typename Derived::Thread thread;
      std::byte* const mine = buffer.data() + omp_get_thread_num() * each;
      int64_t packed = -1; // the item whose rows lie in the buffer
      for (int64_t part = next++; part < all; part = next++) {
        const int64_t item = part / parts, begin = part % parts * columns;
        region(thread, mine, item, 0, g_.m, begin, std::min(g_.n, begin + columns),
               std::exchange(packed, item) != item);
      }
    }
  }

  /// Threads worth starting: each needs enough multiplications to pay for its start, or enough of a
  /// matrix to read, which is what few rows wait for.
  int threads_for() const {
    if (omp_in_parallel()) return 1;
    const double b = static_cast<double>(g_.n) * static_cast<double>(g_.k) *
                     static_cast<double>(g_.batch),
                 work = static_cast<double>(g_.m) * b / Derived::kWorkOfAThread,
                 bytes = b * Derived::kElement / kBytesOfAThread;
    return static_cast<int>(
        std::clamp(std::max(work, bytes), 1.0, static_cast<double>(num_threads())));
  }

  /// Bytes of a thread's buffer: packed A, packed B, bias, scratch.
  int64_t lay_out_buffer() {
    const bool scratch = g_.out_dtype != DType::kFloat32 && k_blocks_.parts > 1;
    const int64_t b_bytes = self().thin()
                                ? 0
                                : std::min(max_columns_, round_up(g_.n, kTileColumns<Derived>)) *
                                      steps_ * Derived::kUnits * 4;
    scratch_rows_ = scratch ? std::min<int64_t>(g_.m, kScratchRows) : g_.m;
    const int64_t scratch_bytes = scratch ? scratch_rows_ * max_columns_ * 4 : 0;
    const int64_t bias_bytes = g_.bias != nullptr ? max_columns_ * 4 : 0;
    a_bytes_ = round_up(self().a_bytes(), 4096);
    bias_offset_ = a_bytes_ + round_up(b_bytes, 4096);
    scratch_offset_ = bias_offset_ + bias_bytes;
    return round_up(scratch_offset_ + scratch_bytes, 4096) +
           256; // not a multiple of the page: no aliasing
  }

  /// One thread's part of one product: rows [m0, m1) and columns [n0, n1) of C. `new_rows`: those
  /// of A that a thin product packs are not in the buffer.
  template <class Thread>
  void region(Thread& thread, std::byte* buffer, int64_t item, int64_t m0, int64_t m1, int64_t n0,
              int64_t n1, bool new_rows = true) const {
    constexpr int64_t kStep = Derived::kRowStep;
    const int64_t most_rows =
        lower_ ? std::min(self().max_rows(), kTriangleRows) : self().max_rows();
    Block block{.item = item};
    block.a = reinterpret_cast<uint32_t*>(buffer);
    block.b = reinterpret_cast<uint32_t*>(buffer + a_bytes_);
    block.bias = reinterpret_cast<float*>(buffer + bias_offset_);
    block.scratch = reinterpret_cast<float*>(buffer + scratch_offset_);
    for (block.j = n0; block.j < n1; block.j += max_columns_) {
      block.columns = std::min(max_columns_, n1 - block.j);
      if (g_.bias != nullptr) load_bias(block.bias, block.j, block.columns);
      for (int64_t i = m0; i < m1; i += scratch_rows_) {
        const int64_t rows = std::min(scratch_rows_, m1 - i);
        block.first_row = i;
        block.new_rows = new_rows && block.j == n0;
        if (self().thin()) {
          block.i = i;
          block.rows = rows;
          self().thin_block(thread, block);
          continue;
        }
        for (block.q = 0; block.q < k_blocks_.parts; ++block.q) {
          pack_panels(b_item(item), g_.ldb, g_.transpose_b, block.j, block.columns, block.q,
                      block.b);
          const Split blocks{ceil_div(rows, kStep), ceil_div(rows, most_rows)};
          for (int64_t r = 0; r < blocks.parts; ++r) {
            block.i = i + blocks.begin(r) * kStep;
            block.rows = std::min(i + rows, i + blocks.begin(r + 1) * kStep) - block.i;
            Block own = block;
            if (lower_) // whole panels: the last of a block may have one vector
              own.columns = std::min(own.columns,
                                     round_up(std::max<int64_t>(0, block.i + block.rows - block.j),
                                              kTileColumns<Derived>));
            if (own.columns > 0) self().block(thread, own);
          }
        }
      }
    }
  }

  /// The bias may lie at any address.
  void load_bias(float* dst, int64_t j0, int64_t columns) const {
    const auto* const src = static_cast<const char*>(g_.bias);
    if (g_.bias_dtype == DType::kFloat32) {
      std::memcpy(dst, src + 4 * j0, static_cast<size_t>(columns) * 4);
      return;
    }
    for (int64_t j = 0; j < columns; ++j)
      dst[j] = static_cast<float>(load_as_double(src, g_.bias_dtype, j0 + j));
  }

  bool stream_ = false;
  bool lower_ = false; ///< what is above the diagonal is left out where that saves blocks
  int64_t max_columns_ = 0;
  int64_t scratch_rows_ = 0;
  int64_t a_bytes_ = 0;
  int64_t bias_offset_ = 0;
  int64_t scratch_offset_ = 0;
};

} // namespace pentatron::kernels::gemm_detail
