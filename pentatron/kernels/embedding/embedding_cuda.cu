#include <utility>

#include "pentatron/kernels/common/device.cuh"
#include "pentatron/kernels/embedding/embedding_entries.h"

namespace pentatron::kernels::embedding_cuda {

namespace {

using namespace cuda;

constexpr unsigned kThreads = 256;

/// One block a token.
template <class T, class Out> __global__ void forward_kernel(EmbeddingArgs a) {
  using A = acc_t<T>;
  const int64_t t = blockIdx.x, r = a.ids[t] - a.row_offset;
  const bool here = r >= 0 && r < a.rows;
  const int64_t p = a.position_table != nullptr ? a.positions[t] : -1;
  const bool positioned = p >= 0 && p < a.num_positions;
  const A factor = static_cast<A>(a.scale);
  for (int64_t c = threadIdx.x; c < a.width; c += blockDim.x) {
    A value = here ? factor * to_acc(static_cast<const T*>(a.table)[r * a.width + c]) : A{0};
    if (positioned) value += to_acc(static_cast<const T*>(a.position_table)[p * a.width + c]);
    static_cast<Out*>(a.out)[t * a.width + c] = from_acc<Out>(value);
  }
}

/// What is sorted: the row of the table and the token, least row first, tokens of a row in order.
struct Pairs {
  uint32_t* rows;
  int32_t* tokens;
};

constexpr int kDigits = 256;             // of a pass over the rows: 8 bits
constexpr int kRounds = kSortTile / 256; // of 256 threads over a tile
constexpr int kAhead = 4;                // tokens of a row whose gradients are loaded at once

/// Tokens of other ranks' rows come last, as row `a.rows`.
__global__ void make_pairs(EmbeddingGradientArgs a, Pairs out) {
  for (int64_t t = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; t < a.tokens;
       t += int64_t{gridDim.x} * blockDim.x) {
    const int64_t r = a.ids[t] - a.row_offset;
    out.rows[t] = static_cast<uint32_t>(r < 0 || r >= a.rows ? a.rows : r);
    out.tokens[t] = static_cast<int32_t>(t);
  }
}

__device__ unsigned digit_of(uint32_t row, int shift) {
  return row >> shift & (kDigits - 1);
}

/// counts[digit][tile], one block a tile.
__global__ void count_digits(const uint32_t* rows, int64_t n, int shift, uint32_t* counts) {
  __shared__ unsigned own[kDigits];
  own[threadIdx.x] = 0;
  __syncthreads();
  for (int round = 0; round < kRounds; ++round) {
    const int64_t i = blockIdx.x * int64_t{kSortTile} + round * 256 + threadIdx.x;
    if (i < n) atomicAdd(&own[digit_of(rows[i], shift)], 1u);
  }
  __syncthreads();
  counts[threadIdx.x * int64_t{gridDim.x} + blockIdx.x] = own[threadIdx.x];
}

/// Each number becomes the sum of those before it. One block of 256 threads.
__global__ void sum_before(uint32_t* counts, int64_t n) {
  __shared__ uint32_t sums[2][256];
  const int64_t each = (n + 255) / 256, begin = threadIdx.x * each;
  const int64_t end = begin + each < n ? begin + each : n;
  uint32_t own = 0;
  for (int64_t i = begin; i < end; ++i) own += counts[i];
  int now = 0;
  sums[now][threadIdx.x] = own;
  __syncthreads();
  for (unsigned distance = 1; distance < 256; distance *= 2, now = 1 - now) {
    uint32_t sum = sums[now][threadIdx.x];
    if (threadIdx.x >= distance) sum += sums[now][threadIdx.x - distance];
    sums[1 - now][threadIdx.x] = sum;
    __syncthreads();
  }
  uint32_t before = sums[now][threadIdx.x] - own;
  for (int64_t i = begin; i < end; ++i) {
    const uint32_t count = counts[i];
    counts[i] = before;
    before += count;
  }
}

/// Moves the pairs of a tile to their places, in order. One block of 256 threads a tile.
__global__ void move_pairs(Pairs in, Pairs out, int64_t n, int shift, const uint32_t* places) {
  __shared__ uint32_t next[kDigits];       // place of the next pair with this digit
  __shared__ unsigned of_warp[8][kDigits]; // pairs of this round
  const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  next[threadIdx.x] = places[threadIdx.x * int64_t{gridDim.x} + blockIdx.x];
  for (int round = 0; round < kRounds; ++round) {
    for (int w = 0; w < 8; ++w) of_warp[w][threadIdx.x] = 0;
    __syncthreads();
    const int64_t i = blockIdx.x * int64_t{kSortTile} + round * 256 + threadIdx.x;
    const bool real = i < n;
    const uint32_t row = real ? in.rows[i] : 0;
    const unsigned digit = digit_of(row, shift);
    unsigned same = __ballot_sync(0xFFFFFFFFu, real); // lanes with this digit
    for (int bit = 0; bit < 8; ++bit) {
      const bool set = (digit >> bit & 1) != 0;
      const unsigned with = __ballot_sync(0xFFFFFFFFu, set);
      same &= set ? with : ~with;
    }
    const int before = __popc(same & ((1u << lane) - 1));
    if (real && before == 0) of_warp[warp][digit] = static_cast<unsigned>(__popc(same));
    __syncthreads();
    if (real) {
      uint32_t place = next[digit] + static_cast<uint32_t>(before);
      for (unsigned w = 0; w < warp; ++w) place += of_warp[w][digit];
      out.rows[place] = row;
      out.tokens[place] = in.tokens[i];
    }
    __syncthreads();
    for (int w = 0; w < 8; ++w) next[threadIdx.x] += of_warp[w][threadIdx.x];
  }
}

/// One block a pair: that of the first pair of a row adds the rows of dy of all its tokens, in
/// order, of which several are loaded ahead: a frequent word has many.
template <class T, int V> __global__ void gradient_kernel(EmbeddingGradientArgs a, Pairs sorted) {
  using A = acc_t<T>;
  const int64_t first = blockIdx.x;
  const uint32_t row = sorted.rows[first];
  if (row == a.rows || (first > 0 && sorted.rows[first - 1] == row)) return;
  A* grad = static_cast<A*>(a.main_grad) + row * a.width;
  const T* dy = static_cast<const T*>(a.dy);
  const A factor = static_cast<A>(a.scale);
  for (int64_t c = threadIdx.x * int64_t{V}; c < a.width; c += int64_t{blockDim.x} * V) {
    A sum[V], d[kAhead][V];
    for (int v = 0; v < V; ++v) sum[v] = grad[c + v];
    bool more = true;
    for (int64_t k = first; more; k += kAhead) {
      bool here[kAhead];
#pragma unroll
      for (int j = 0; j < kAhead; ++j) here[j] = k + j < a.tokens && sorted.rows[k + j] == row;
#pragma unroll
      for (int j = 0; j < kAhead; ++j)
        if (here[j]) load<V>(dy + sorted.tokens[k + j] * a.width + c, d[j]);
#pragma unroll
      for (int j = 0; j < kAhead; ++j)
        if (here[j])
          for (int v = 0; v < V; ++v) sum[v] += factor * d[j][v];
      more = here[kAhead - 1];
    }
    for (int v = 0; v < V; ++v) grad[c + v] = sum[v];
  }
}

/// The workspace in parts.
struct Scratch {
  Pairs one, two;
  uint32_t* counts;

  Scratch(const EmbeddingGradientArgs& a, const Context& context) {
    auto* const words = reinterpret_cast<uint32_t*>(context.workspace.data());
    one = {words, reinterpret_cast<int32_t*>(words + a.tokens)};
    two = {words + 2 * a.tokens, reinterpret_cast<int32_t*>(words + 3 * a.tokens)};
    counts = words + 4 * a.tokens;
  }
};

/// Sorts by row: a pass for each 8 bits that rows have.
Pairs sorted_pairs(const EmbeddingGradientArgs& a, const Context& context) {
  Scratch scratch(a, context);
  const auto tiles = static_cast<unsigned>((a.tokens + kSortTile - 1) / kSortTile);
  const char* const op = "embedding_gradient";
  launch(op, make_pairs, stride_blocks(a.tokens), kThreads, context, a, scratch.one);
  for (int shift = 0; shift < 32 && a.rows >> shift != 0; shift += 8) {
    launch(op, count_digits, tiles, kThreads, context, scratch.one.rows, a.tokens, shift,
           scratch.counts);
    launch(op, sum_before, 1, kThreads, context, scratch.counts, int64_t{kDigits} * tiles);
    launch(op, move_pairs, tiles, kThreads, context, scratch.one, scratch.two, a.tokens, shift,
           scratch.counts);
    std::swap(scratch.one, scratch.two);
  }
  return scratch.one;
}

} // namespace

void forward(const EmbeddingArgs& a, const Context& context) {
  if (a.tokens == 0) return;
  visit_pair(a.dtype, a.out_dtype, [&](auto x, auto out) {
    launch("embedding", forward_kernel<decltype(x), decltype(out)>, static_cast<unsigned>(a.tokens),
           row_threads(a.width), context, a);
  });
}

void gradient(const EmbeddingGradientArgs& a, const Context& context) {
  if (a.tokens == 0) return;
  const Pairs sorted = sorted_pairs(a, context);
  const auto blocks = static_cast<unsigned>(a.tokens);
  visit_dtype(a.dtype, [&](auto x) {
    using T = decltype(x);
    if (takes_packs<T>({a.dy}, {a.width}))
      launch("embedding_gradient", gradient_kernel<T, kPack<T>>, blocks,
             row_threads(a.width / kPack<T>), context, a, sorted);
    else
      launch("embedding_gradient", gradient_kernel<T, 1>, blocks, row_threads(a.width), context, a,
             sorted);
  });
}

} // namespace pentatron::kernels::embedding_cuda
