#include "pentatron/kernels/common/device.cuh"
#include "pentatron/kernels/optimizer/optimizer_entries.h"

namespace pentatron::kernels::optimizer_cuda {

namespace {

using namespace cuda;

cudaStream_t stream_of(const Context& context) {
  return static_cast<cudaStream_t>(context.stream);
}

/// f(i) for every i of [0, n) over the whole grid.
template <class F> __device__ void grid_stride(int64_t n, F&& f) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < n;
       i += int64_t{gridDim.x} * blockDim.x)
    f(i);
}

template <class T, class Copy> __global__ void adamw_kernel(AdamWArgs a, AdamWScalars s) {
  T* p = static_cast<T*>(a.param);
  T* m = static_cast<T*>(a.exp_avg);
  T* v = static_cast<T*>(a.exp_avg_sq);
  Copy* copy = static_cast<Copy*>(a.param_copy);
  grid_stride(a.n, [&](int64_t i) {
    const T g = static_cast<T>(s.grad_scale) * static_cast<const T*>(a.grad)[i];
    const T m1 = m[i] + static_cast<T>(s.one_minus_beta1) * (g - m[i]);
    const T v1 = v[i] * static_cast<T>(s.beta2) + static_cast<T>(s.one_minus_beta2) * g * g;
    const T denominator = sqrt(v1) / static_cast<T>(s.sqrt_correction2) + static_cast<T>(s.eps);
    const T p1 = p[i] * static_cast<T>(s.decay) - static_cast<T>(s.step_size) * m1 / denominator;
    m[i] = m1;
    v[i] = v1;
    p[i] = p1;
    if (copy != nullptr) copy[i] = from_acc<Copy>(static_cast<acc_t<Copy>>(p1));
  });
}

template <class T, class Copy> __global__ void sgd_kernel(SgdArgs a) {
  T* p = static_cast<T*>(a.param);
  T* b = static_cast<T*>(a.momentum_buffer);
  Copy* copy = static_cast<Copy*>(a.param_copy);
  const T momentum = static_cast<T>(a.momentum);
  grid_stride(a.n, [&](int64_t i) {
    T g = static_cast<T>(a.grad_scale) * static_cast<const T*>(a.grad)[i] +
          static_cast<T>(a.weight_decay) * p[i];
    if (b != nullptr) {
      const T b1 = momentum * b[i] + g;
      b[i] = b1;
      g = a.nesterov ? g + momentum * b1 : b1;
    }
    const T p1 = p[i] - static_cast<T>(a.lr) * g;
    p[i] = p1;
    if (copy != nullptr) copy[i] = from_acc<Copy>(static_cast<acc_t<Copy>>(p1));
  });
}

template <class T, class Copy> __global__ void lion_kernel(LionArgs a, LionScalars s) {
  T* p = static_cast<T*>(a.param);
  T* m = static_cast<T*>(a.exp_avg);
  Copy* copy = static_cast<Copy*>(a.param_copy);
  grid_stride(a.n, [&](int64_t i) {
    const T g = static_cast<T>(s.grad_scale) * static_cast<const T*>(a.grad)[i], m0 = m[i];
    const T c = static_cast<T>(s.beta1) * m0 + static_cast<T>(s.one_minus_beta1) * g;
    const T sign = c > 0 ? T(1) : c < 0 ? T(-1) : c;
    const T p1 = p[i] * static_cast<T>(s.decay) - static_cast<T>(s.lr) * sign;
    m[i] = static_cast<T>(s.beta2) * m0 + static_cast<T>(s.one_minus_beta2) * g;
    p[i] = p1;
    if (copy != nullptr) copy[i] = from_acc<Copy>(static_cast<acc_t<Copy>>(p1));
  });
}

/// One block of threads for each block of kSumBlock elements.
template <class T> __global__ void partial_squares(const T* x, int64_t n, double* partial) {
  const int64_t begin = blockIdx.x * kSumBlock;
  const int64_t end = begin + kSumBlock < n ? begin + kSumBlock : n;
  double sum = 0;
  for (int64_t i = begin + threadIdx.x; i < end; i += blockDim.x) {
    const auto value = static_cast<double>(to_acc(x[i]));
    sum += value * value;
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

__global__ void sum_partials(const double* partial, int64_t n, double* result) {
  double sum = 0;
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x) sum += partial[i];
  sum = block_sum(sum);
  if (threadIdx.x == 0) *result = sum;
}

using Unsigned = unsigned long long;

__global__ void begin_search(NonfiniteArgs a) {
  *a.count = 0;
  *a.first_index = -1; // the largest unsigned number, which every index is below
}

template <class T> __global__ void search_kernel(NonfiniteArgs a) {
  grid_stride(a.n, [&](int64_t i) {
    if (isfinite(to_acc(static_cast<const T*>(a.x)[i]))) return;
    atomicAdd(reinterpret_cast<Unsigned*>(a.count), Unsigned{1});
    atomicMin(reinterpret_cast<Unsigned*>(a.first_index), static_cast<Unsigned>(i));
  });
}

template <class T> __global__ void scale_kernel(ScaleArgs a) {
  T* x = static_cast<T*>(a.x);
  const auto factor = static_cast<acc_t<T>>(a.factor);
  grid_stride(a.n, [&](int64_t i) { x[i] = from_acc<T>(to_acc(x[i]) * factor); });
}

template <class T, class Out> __global__ void cast_kernel(CastArgs a) {
  const T* x = static_cast<const T*>(a.x);
  Out* out = static_cast<Out*>(a.out);
  grid_stride(a.n,
              [&](int64_t i) { out[i] = from_acc<Out>(static_cast<acc_t<Out>>(to_acc(x[i]))); });
}

} // namespace

void adamw(const AdamWArgs& a, const Context& context) {
  const AdamWScalars s(a);
  visit_dtype(a.copy_dtype, [&](auto copy) {
    using Copy = decltype(copy);
    if (a.dtype == DType::kFloat64)
      adamw_kernel<double, Copy><<<stride_blocks(a.n), 256, 0, stream_of(context)>>>(a, s);
    else
      adamw_kernel<float, Copy><<<stride_blocks(a.n), 256, 0, stream_of(context)>>>(a, s);
  });
  check_launch("adamw");
}

void sgd(const SgdArgs& a, const Context& context) {
  visit_dtype(a.copy_dtype, [&](auto copy) {
    using Copy = decltype(copy);
    if (a.dtype == DType::kFloat64)
      sgd_kernel<double, Copy><<<stride_blocks(a.n), 256, 0, stream_of(context)>>>(a);
    else
      sgd_kernel<float, Copy><<<stride_blocks(a.n), 256, 0, stream_of(context)>>>(a);
  });
  check_launch("sgd");
}

void lion(const LionArgs& a, const Context& context) {
  const LionScalars s(a);
  visit_dtype(a.copy_dtype, [&](auto copy) {
    using Copy = decltype(copy);
    if (a.dtype == DType::kFloat64)
      lion_kernel<double, Copy><<<stride_blocks(a.n), 256, 0, stream_of(context)>>>(a, s);
    else
      lion_kernel<float, Copy><<<stride_blocks(a.n), 256, 0, stream_of(context)>>>(a, s);
  });
  check_launch("lion");
}

void sum_of_squares(const SumOfSquaresArgs& a, const Context& context) {
  const int64_t blocks = (a.n + kSumBlock - 1) / kSumBlock;
  auto* partial = reinterpret_cast<double*>(context.workspace.data());
  if (blocks > 0)
    visit_dtype(a.dtype, [&](auto x) {
      partial_squares<<<static_cast<unsigned>(blocks), 256, 0, stream_of(context)>>>(
          static_cast<const decltype(x)*>(a.x), a.n, partial);
    });
  sum_partials<<<1, 256, 0, stream_of(context)>>>(partial, blocks, a.result);
  check_launch("sum_of_squares");
}

void find_nonfinite(const NonfiniteArgs& a, const Context& context) {
  begin_search<<<1, 1, 0, stream_of(context)>>>(a);
  visit_dtype(a.dtype, [&](auto x) {
    search_kernel<decltype(x)><<<stride_blocks(a.n), 256, 0, stream_of(context)>>>(a);
  });
  check_launch("find_nonfinite");
}

void scale(const ScaleArgs& a, const Context& context) {
  visit_dtype(a.dtype, [&](auto x) {
    scale_kernel<decltype(x)><<<stride_blocks(a.n), 256, 0, stream_of(context)>>>(a);
  });
  check_launch("scale");
}

void cast(const CastArgs& a, const Context& context) {
  visit_dtype(a.dtype, [&](auto x) {
    visit_dtype(a.out_dtype, [&](auto out) {
      cast_kernel<decltype(x), decltype(out)>
          <<<stride_blocks(a.n), 256, 0, stream_of(context)>>>(a);
    });
  });
  check_launch("cast");
}

void zero(const ZeroArgs& a, const Context& context) {
  if (a.bytes > 0) cudaMemsetAsync(a.x, 0, static_cast<size_t>(a.bytes), stream_of(context));
  check_launch("zero");
}

} // namespace pentatron::kernels::optimizer_cuda
