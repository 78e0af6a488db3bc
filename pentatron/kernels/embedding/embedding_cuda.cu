#include "pentatron/kernels/common/device.cuh"
#include "pentatron/kernels/embedding/embedding_entries.h"

namespace pentatron::kernels::embedding_cuda {

namespace {

using namespace cuda;

constexpr unsigned kThreads = 256;

cudaStream_t stream_of(const Context& context) {
  return static_cast<cudaStream_t>(context.stream);
}

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

/// One block a token: the first token with an id adds the rows of all tokens with that id, in
/// order.
template <class T> __global__ void gradient_kernel(EmbeddingGradientArgs a) {
  using A = acc_t<T>;
  __shared__ int64_t matches[kThreads];
  __shared__ int counts[kThreads / 32];
  const int64_t first = blockIdx.x, id = a.ids[first], r = id - a.row_offset;
  if (r < 0 || r >= a.rows) return;
  int seen = 0;
  for (int64_t t = threadIdx.x; t < first; t += kThreads) seen |= a.ids[t] == id;
  if (__syncthreads_or(seen)) return;

  A* grad = static_cast<A*>(a.main_grad) + r * a.width;
  const T* dy = static_cast<const T*>(a.dy);
  const A factor = static_cast<A>(a.scale);
  const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (int64_t base = first; base < a.tokens; base += kThreads) {
    const int64_t t = base + threadIdx.x;
    const bool match = t < a.tokens && a.ids[t] == id;
    const unsigned ballot = __ballot_sync(0xFFFFFFFFu, match);
    __syncthreads(); // the list of the chunk before has been read
    if (lane == 0) counts[warp] = __popc(ballot);
    __syncthreads();
    int begin = 0, total = 0;
    for (unsigned w = 0; w < kThreads / 32; ++w) {
      if (w < warp) begin += counts[w];
      total += counts[w];
    }
    if (match) matches[begin + __popc(ballot & ((1u << lane) - 1))] = t;
    __syncthreads();
    if (total == 0) continue;
    for (int64_t c = threadIdx.x; c < a.width; c += kThreads) {
      A sum = grad[c];
      for (int k = 0; k < total; ++k) sum += factor * to_acc(dy[matches[k] * a.width + c]);
      grad[c] = sum;
    }
  }
}

} // namespace

void forward(const EmbeddingArgs& a, const Context& context) {
  if (a.tokens == 0) return;
  visit_dtype(a.dtype, [&](auto x) {
    visit_dtype(a.out_dtype, [&](auto out) {
      using T = decltype(x);
      using Out = decltype(out);
      if constexpr (std::is_same_v<T, double> == std::is_same_v<Out, double>)
        forward_kernel<T, Out>
            <<<static_cast<unsigned>(a.tokens), row_threads(a.width), 0, stream_of(context)>>>(a);
    });
  });
  check_launch("embedding");
}

void gradient(const EmbeddingGradientArgs& a, const Context& context) {
  if (a.tokens == 0) return;
  visit_dtype(a.dtype, [&](auto x) {
    gradient_kernel<decltype(x)>
        <<<static_cast<unsigned>(a.tokens), kThreads, 0, stream_of(context)>>>(a);
  });
  check_launch("embedding_gradient");
}

} // namespace pentatron::kernels::embedding_cuda
