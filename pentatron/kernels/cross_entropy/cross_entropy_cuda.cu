#include <cmath>

#include "pentatron/kernels/common/device.cuh"
#include "pentatron/kernels/cross_entropy/cross_entropy_entries.h"

namespace pentatron::kernels::cross_entropy_cuda {

namespace {

using namespace cuda;

/// Maximum over the block, the same in every thread; NaN is passed over, as fmax does.
template <class A> __device__ A block_max(A value) {
  __shared__ A warps[32];
  for (int offset = 16; offset > 0; offset /= 2)
    value = fmax(value, __shfl_xor_sync(0xFFFFFFFFu, value, offset));
  __syncthreads(); // `warps` may still be read by the maximum before
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
  __syncthreads();
  A total = warps[0];
  for (unsigned w = 1; w < blockDim.x / 32; ++w) total = fmax(total, warps[w]);
  return total;
}

template <class A> struct RowStats { A max, sum_exp, sum; };

/// Adds W elements to the statistics of those that a thread has seen: the sum of exponentials is
/// scaled when the maximum grows, so a row is read once (Milakov & Gimelshein 2018,
/// arXiv:1805.02867).
template <int W, class A> __device__ void add_elements(RowStats<A>& s, const A (&x)[W]) {
  const A none = -static_cast<A>(INFINITY);
  A largest = x[0];
  for (int v = 1; v < W; ++v) largest = fmax(largest, x[v]);
  if (largest > s.max) {
    s.sum_exp *= exp(s.max - largest);
    s.max = largest;
  }
  const A origin = s.max == none ? A{0} : s.max;
  for (int v = 0; v < W; ++v) {
    s.sum_exp += exp(x[v] - origin);
    s.sum += x[v];
  }
}

template <bool packs, class T>
__device__ RowStats<acc_t<T>> row_stats(const T* x, int64_t columns) {
  using A = acc_t<T>;
  constexpr int W = packs ? 2 * kPack<T> : 1; // two loads under way at once
  RowStats<A> own{-static_cast<A>(INFINITY), 0, 0};
  const int64_t whole = columns / W * W;
  for (int64_t i = threadIdx.x * int64_t{W}; i < whole; i += blockDim.x * int64_t{W}) {
    A in[W];
    load_row<packs>(x + i, in);
    add_elements(own, in);
  }
  for (int64_t i = whole + threadIdx.x; i < columns; i += blockDim.x) {
    const A in[1] = {to_acc(x[i])};
    add_elements(own, in);
  }
  const A max = block_max(own.max);
  if (own.max != max) own.sum_exp *= exp(own.max - max); // -inf - -inf would be NaN
  return {max, block_sum(own.sum_exp), block_sum(own.sum)};
}

template <class A> struct Terms { A smoothing, z_loss, vocab; };

template <class A> __device__ A row_loss(A lse, A target_logit, A logit_sum, const Terms<A>& t) {
  A loss = lse - (1 - t.smoothing) * target_logit + t.z_loss * lse * lse;
  if (t.smoothing > 0) loss -= t.smoothing / t.vocab * logit_sum;
  return loss;
}

/// A thread reads and writes the same columns, so `out` may be `x`.
template <bool packs, class T, class Out>
__device__ void row_gradient(const T* x, Out* out, int64_t columns, int64_t padded, int64_t target,
                             acc_t<T> max, acc_t<T> sum_exp, acc_t<T> scale,
                             const Terms<acc_t<T>>& t) {
  using A = acc_t<T>;
  const A lse = max + log(sum_exp);
  const A slope = scale * (1 + 2 * t.z_loss * lse) / sum_exp;
  const A uniform = t.smoothing > 0 ? scale * t.smoothing / t.vocab : A{0};
  const auto derivative = [&](A logit, int64_t j) {
    const A g = slope * exp(logit - max) - uniform;
    return j == target ? g - scale * (1 - t.smoothing) : g;
  };
  constexpr int W = !packs ? 1 : sizeof(T) < sizeof(Out) ? kPack<T> : kPack<Out>;
  for (int64_t i = threadIdx.x * int64_t{W}; i < padded; i += blockDim.x * int64_t{W}) {
    if (i + W <= columns) {
      A g[W];
      load_row<packs>(x + i, g);
      for (int v = 0; v < W; ++v) g[v] = derivative(g[v], i + v);
      store_row<packs>(out + i, g);
      continue;
    }
    for (int64_t j = i; j < i + W && j < padded; ++j)
      out[j] = from_acc<Out>(j < columns ? derivative(to_acc(x[j]), j) : A{0});
  }
}

template <class Out> __device__ void zero_row(Out* out, int64_t padded) {
  for (int64_t j = threadIdx.x; j < padded; j += blockDim.x) out[j] = from_acc<Out>(0);
}

/// One block a row.
template <class T, bool packs>
__global__ __launch_bounds__(1024) void stats_kernel(CrossEntropyStatsArgs a) {
  using A = acc_t<T>;
  const int64_t r = blockIdx.x;
  const T* x = static_cast<const T*>(a.logits) + r * a.row_stride;
  const RowStats<A> s = row_stats<packs>(x, a.columns);
  if (threadIdx.x != 0) return;
  static_cast<A*>(a.max)[r] = s.max;
  static_cast<A*>(a.sum_exp)[r] = s.sum_exp;
  const int64_t target = a.target[r] - a.vocab_offset;
  const bool here = a.target[r] >= 0 && target >= 0 && target < a.columns;
  static_cast<A*>(a.target_logit)[r] = here ? to_acc(x[target]) : A{0};
  if (a.logit_sum != nullptr) static_cast<A*>(a.logit_sum)[r] = s.sum;
}

template <class A> __global__ void rescale_kernel(CrossEntropyRescaleArgs a) {
  for (int64_t r = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; r < a.rows;
       r += int64_t{gridDim.x} * blockDim.x) {
    const A local = static_cast<const A*>(a.local_max)[r];
    const A global = static_cast<const A*>(a.global_max)[r];
    // Equal maxima need no factor; this also keeps -inf - -inf out of the exponential.
    if (local != global) static_cast<A*>(a.sum_exp)[r] *= exp(local - global);
  }
}

template <class A> __global__ void loss_kernel(CrossEntropyLossArgs a) {
  const Terms<A> terms{static_cast<A>(a.label_smoothing), static_cast<A>(a.z_loss),
                       static_cast<A>(a.global_vocab)};
  for (int64_t r = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; r < a.rows;
       r += int64_t{gridDim.x} * blockDim.x) {
    const A lse = static_cast<const A*>(a.max)[r] + log(static_cast<const A*>(a.sum_exp)[r]);
    const A sum = terms.smoothing > 0 ? static_cast<const A*>(a.logit_sum)[r] : A{0};
    static_cast<A*>(a.lse)[r] = lse;
    static_cast<A*>(a.loss)[r] =
        a.target[r] < 0 ? A{0}
                        : row_loss(lse, static_cast<const A*>(a.target_logit)[r], sum, terms);
  }
}

/// One block a row.
template <class T, class Out, bool packs>
__global__ __launch_bounds__(1024) void gradient_kernel(CrossEntropyGradientArgs a) {
  using A = acc_t<T>;
  const int64_t r = blockIdx.x;
  Out* out = static_cast<Out*>(a.gradient) + r * a.out_row_stride;
  if (a.target[r] < 0) return zero_row(out, a.padded_columns);
  const Terms<A> terms{static_cast<A>(a.label_smoothing), static_cast<A>(a.z_loss),
                       static_cast<A>(a.global_vocab)};
  row_gradient<packs>(static_cast<const T*>(a.logits) + r * a.row_stride, out, a.columns,
                      a.padded_columns, a.target[r] - a.vocab_offset,
                      static_cast<const A*>(a.max)[r], static_cast<const A*>(a.sum_exp)[r],
                      static_cast<const A*>(a.row_scale)[r], terms);
}

/// One block a row.
template <class T, class Out, bool packs>
__global__ __launch_bounds__(1024) void fused_kernel(CrossEntropyArgs a) {
  using A = acc_t<T>;
  const int64_t r = blockIdx.x, target = a.target[r];
  const T* x = static_cast<const T*>(a.logits) + r * a.row_stride;
  const Terms<A> terms{static_cast<A>(a.label_smoothing), static_cast<A>(a.z_loss),
                       static_cast<A>(a.columns)};
  const RowStats<A> s = row_stats<packs>(x, a.columns);
  if (threadIdx.x == 0) {
    const A lse = s.max + log(s.sum_exp);
    const A logit = target >= 0 && target < a.columns ? to_acc(x[target]) : A{0};
    static_cast<A*>(a.lse)[r] = lse;
    static_cast<A*>(a.loss)[r] = target < 0 ? A{0} : row_loss(lse, logit, s.sum, terms);
  }
  if (a.gradient == nullptr) return;
  __syncthreads(); // the target's logit is read before the gradient may overwrite it
  Out* out = static_cast<Out*>(a.gradient) + r * a.out_row_stride;
  if (target < 0) return zero_row(out, a.padded_columns);
  row_gradient<packs>(x, out, a.columns, a.padded_columns, target, s.max, s.sum_exp,
                      static_cast<const A*>(a.row_scale)[r], terms);
}

/// f(true) or f(false) as a constant.
template <class F> void visit_packs(bool packs, F&& f) {
  if (packs)
    f(std::true_type{});
  else
    f(std::false_type{});
}

/// Whether rows of logits and of the gradient, if it is wanted, can be accessed by 16 bytes.
template <class T, class Out, class Args> bool rows_take_packs(const Args& a) {
  return takes_packs<T>({a.logits}, {a.row_stride}) &&
         takes_packs<Out>({a.gradient}, {a.out_row_stride});
}

/// Rows are long: more threads than row_threads(), so that fewer rows are under way at once and
/// more of them stay in the cache until they are read again.
unsigned threads_for(int64_t columns) {
  return columns >= 16384 ? 1024 : row_threads(columns);
}

} // namespace

void stats(const CrossEntropyStatsArgs& a, const Context& context) {
  if (a.rows == 0) return;
  visit_dtype(a.dtype, [&](auto x) {
    using T = decltype(x);
    visit_packs(takes_packs<T>({a.logits}, {a.row_stride}), [&](auto packs) {
      launch("cross_entropy_stats", stats_kernel<T, decltype(packs)::value>,
             static_cast<unsigned>(a.rows), threads_for(a.columns), context, a);
    });
  });
}

void rescale(const CrossEntropyRescaleArgs& a, const Context& context) {
  if (a.dtype == DType::kFloat64)
    launch("cross_entropy_rescale", rescale_kernel<double>, stride_blocks(a.rows), 256, context, a);
  else
    launch("cross_entropy_rescale", rescale_kernel<float>, stride_blocks(a.rows), 256, context, a);
}

void loss(const CrossEntropyLossArgs& a, const Context& context) {
  if (a.dtype == DType::kFloat64)
    launch("cross_entropy_loss", loss_kernel<double>, stride_blocks(a.rows), 256, context, a);
  else
    launch("cross_entropy_loss", loss_kernel<float>, stride_blocks(a.rows), 256, context, a);
}

void gradient(const CrossEntropyGradientArgs& a, const Context& context) {
  if (a.rows == 0) return;
  visit_pair(a.dtype, a.out_dtype, [&](auto x, auto out) {
    using T = decltype(x);
    using Out = decltype(out);
    visit_packs(rows_take_packs<T, Out>(a), [&](auto packs) {
      launch("cross_entropy_gradient", gradient_kernel<T, Out, decltype(packs)::value>,
             static_cast<unsigned>(a.rows), threads_for(a.padded_columns), context, a);
    });
  });
}

void fused(const CrossEntropyArgs& a, const Context& context) {
  if (a.rows == 0) return;
  visit_pair(a.dtype, a.out_dtype, [&](auto x, auto out) {
    using T = decltype(x);
    using Out = decltype(out);
    visit_packs(rows_take_packs<T, Out>(a), [&](auto packs) {
      launch("cross_entropy", fused_kernel<T, Out, decltype(packs)::value>,
             static_cast<unsigned>(a.rows), threads_for(a.columns), context, a);
    });
  });
}

} // namespace pentatron::kernels::cross_entropy_cuda
