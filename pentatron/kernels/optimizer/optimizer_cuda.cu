#include "pentatron/kernels/common/device.cuh"
#include "pentatron/kernels/common/philox.cuh"
#include "pentatron/kernels/optimizer/narrow_codes.h"
#include "pentatron/kernels/optimizer/optimizer_entries.h"

namespace pentatron::kernels::optimizer_cuda {

namespace {

using namespace cuda;

/// f(i) for every i of [0, n) over the whole grid.
template <class F> __device__ void grid_stride(int64_t n, F&& f) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < n;
       i += int64_t{gridDim.x} * blockDim.x)
    f(i);
}

/// What from_acc() and store_row() round to the copy: ties of bf16 away from zero.
template <class Copy> __device__ acc_t<Copy> for_copy(acc_t<Copy> x) {
  if constexpr (std::is_same_v<Copy, __nv_bfloat16>) return ties_away(x);
  return x;
}

/// p_i = rule(i, p_i, grad_scale * grad_i), and the copy of it.
template <class T, class Copy, class Args, class F>
__device__ void update(const Args& a, T grad_scale, F&& rule) {
  T* p = static_cast<T*>(a.param);
  Copy* copy = static_cast<Copy*>(a.param_copy);
  grid_stride(a.n, [&](int64_t i) {
    const T p1 = rule(i, p[i], grad_scale * static_cast<const T*>(a.grad)[i]);
    p[i] = p1;
    if (copy != nullptr) copy[i] = from_acc<Copy>(for_copy<Copy>(static_cast<acc_t<Copy>>(p1)));
  });
}

/// Of a step that the device controls: its scalars, or false if it updates nothing.
template <class Args, class Scalars> __device__ bool controlled(Args& a, Scalars& s) {
  if (a.control == nullptr) return true;
  if (!take_control(a)) return false;
  s = Scalars(a);
  return true;
}

template <class T, class Copy> __global__ void adamw_kernel(AdamWArgs a, AdamWScalars<T> s) {
  if (!controlled(a, s)) return;
  T* m = static_cast<T*>(a.exp_avg);
  T* v = static_cast<T*>(a.exp_avg_sq);
  update<T, Copy>(a, s.grad_scale, [&](int64_t i, T p, T g) {
    const T m1 = m[i] + s.weight1 * (g - m[i]);
    const T v1 = v[i] * s.beta2 + s.weight2 * g * g;
    m[i] = m1;
    v[i] = v1;
    return p * s.decay - s.step_size * m1 / (sqrt(v1) / s.correction2 + s.eps);
  });
}

/// The same for kRun neighbouring elements a thread, whose loads are under way at once. The last
/// n % kRun elements are one thread's each.
constexpr int kRun = 8;
template <class Copy> __global__ void adamw_runs(AdamWArgs a, AdamWScalars<float> s) {
  if (!controlled(a, s)) return;
  float *const param = static_cast<float*>(a.param),
               *const exp_avg = static_cast<float*>(a.exp_avg),
               *const exp_avg_sq = static_cast<float*>(a.exp_avg_sq);
  const float* const grad = static_cast<const float*>(a.grad);
  Copy* const copy = static_cast<Copy*>(a.param_copy);
  const auto one = [&](float& p, float& m, float& v, float own) {
    const float g = s.grad_scale * own;
    m = m + s.weight1 * (g - m);
    v = v * s.beta2 + s.weight2 * g * g;
    p = p * s.decay - s.step_size * m / (sqrt(v) / s.correction2 + s.eps);
  };
  const int64_t runs = a.n / kRun, rest = a.n % kRun;
  grid_stride(runs + rest, [&](int64_t k) {
    if (k >= runs) {
      const int64_t i = runs * kRun + k - runs;
      one(param[i], exp_avg[i], exp_avg_sq[i], grad[i]);
      if (copy != nullptr) copy[i] = from_acc<Copy>(for_copy<Copy>(param[i]));
      return;
    }
    const int64_t i = k * kRun;
    float p[kRun], m[kRun], v[kRun], g[kRun];
    load_row<true>(param + i, p);
    load_row<true>(exp_avg + i, m);
    load_row<true>(exp_avg_sq + i, v);
    load_row<true>(grad + i, g);
    for (int e = 0; e < kRun; ++e) one(p[e], m[e], v[e], g[e]);
    store_row<true>(param + i, p);
    store_row<true>(exp_avg + i, m);
    store_row<true>(exp_avg_sq + i, v);
    if (copy == nullptr) return;
    acc_t<Copy> rounded[kRun];
    for (int e = 0; e < kRun; ++e) rounded[e] = for_copy<Copy>(p[e]);
    store_row<true>(copy + i, rounded);
  });
}

template <class T, class Copy> __global__ void sgd_kernel(SgdArgs a, SgdScalars<T> s) {
  if (!controlled(a, s)) return;
  T* b = static_cast<T*>(a.momentum_buffer);
  update<T, Copy>(a, s.grad_scale, [&](int64_t i, T p, T scaled) {
    T g = scaled + s.decay * p;
    if (b != nullptr) {
      const T b1 = s.momentum * b[i] + g;
      b[i] = b1;
      g = a.nesterov ? g + s.momentum * b1 : b1;
    }
    return p - s.lr * g;
  });
}

template <class T, class Copy> __global__ void lion_kernel(LionArgs a, LionScalars<T> s) {
  if (!controlled(a, s)) return;
  T* m = static_cast<T*>(a.exp_avg);
  update<T, Copy>(a, s.grad_scale, [&](int64_t i, T p, T g) {
    const T m0 = m[i], c = s.beta1 * m0 + s.weight1 * g;
    const T sign = c > 0 ? T(1) : c < 0 ? T(-1) : c;
    m[i] = s.beta2 * m0 + s.weight2 * g;
    return p * s.decay - s.lr * sign;
  });
}

/// One block of threads for each block of kSumBlock elements.
template <class T> __global__ void partial_squares(const T* x, int64_t n, double* partial) {
  const int64_t begin = blockIdx.x * kSumBlock;
  const int64_t end = begin + kSumBlock < n ? begin + kSumBlock : n;
  double sum = 0;
#pragma unroll 8 // loads under way at once
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

/// One thread a counter: eight elements of a row that are 16 apart. `groups`: of 128 elements, that
/// a row may touch.
template <class T>
__global__ void narrow_kernel(StoreNarrowArgs a, NarrowFormat format, uint2 key, int64_t groups) {
  grid_stride(a.rows * groups * 16, [&](int64_t u) {
    const int64_t lane = u % 16, row = u / 16 / groups, first = a.first + row * a.first_step;
    const int64_t group = first / 128 + u / 16 % groups;
    const auto counter = static_cast<uint64_t>(group * 16 + lane);
    uint32_t words[4] = {static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32),
                         static_cast<uint32_t>(a.step), static_cast<uint32_t>(a.step >> 32)};
    if (a.by_chance) philox(words, key.x, key.y);
#pragma unroll
    for (int h = 0; h < 8; ++h) {
      const int64_t col = group * 128 + h * 16 + lane - first;
      if (col < 0 || col >= a.cols) continue;
      const int64_t i = row * a.stride + col;
      const uint32_t code = stored_code(a, format, static_cast<const T*>(a.value)[i],
                                        half_of(static_cast<uint64_t>(h) * 16, words));
      if (format.width == 8)
        static_cast<uint8_t*>(a.stored)[i] = static_cast<uint8_t>(code);
      else
        static_cast<uint16_t*>(a.stored)[i] = static_cast<uint16_t>(code);
    }
  });
}

template <class T> __global__ void widen_kernel(LoadNarrowArgs a, NarrowFormat format) {
  grid_stride(a.n, [&](int64_t i) {
    const uint32_t code = format.width == 8 ? static_cast<const uint8_t*>(a.stored)[i]
                                            : static_cast<const uint16_t*>(a.stored)[i];
    static_cast<T*>(a.value)[i] = loaded_number<T>(a, format, code);
  });
}

} // namespace

void adamw(const AdamWArgs& a, const Context& context) {
  visit_dtype(a.copy_dtype, [&](auto copy) {
    using Copy = decltype(copy);
    if (a.dtype == DType::kFloat64)
      launch("adamw", adamw_kernel<double, Copy>, stride_blocks(a.n), 256, context, a,
             AdamWScalars<double>(a));
    else if (!std::is_same_v<Copy, double> &&
             takes_packs<float>({a.param, a.exp_avg, a.exp_avg_sq, a.grad, a.param_copy}, {}))
      launch("adamw", adamw_runs<Copy>, stride_blocks(a.n / kRun + a.n % kRun), 256, context, a,
             AdamWScalars<float>(a));
    else
      launch("adamw", adamw_kernel<float, Copy>, stride_blocks(a.n), 256, context, a,
             AdamWScalars<float>(a));
  });
}

void sgd(const SgdArgs& a, const Context& context) {
  visit_dtype(a.copy_dtype, [&](auto copy) {
    using Copy = decltype(copy);
    if (a.dtype == DType::kFloat64)
      launch("sgd", sgd_kernel<double, Copy>, stride_blocks(a.n), 256, context, a,
             SgdScalars<double>(a));
    else
      launch("sgd", sgd_kernel<float, Copy>, stride_blocks(a.n), 256, context, a,
             SgdScalars<float>(a));
  });
}

void lion(const LionArgs& a, const Context& context) {
  visit_dtype(a.copy_dtype, [&](auto copy) {
    using Copy = decltype(copy);
    if (a.dtype == DType::kFloat64)
      launch("lion", lion_kernel<double, Copy>, stride_blocks(a.n), 256, context, a,
             LionScalars<double>(a));
    else
      launch("lion", lion_kernel<float, Copy>, stride_blocks(a.n), 256, context, a,
             LionScalars<float>(a));
  });
}

void sum_of_squares(const SumOfSquaresArgs& a, const Context& context) {
  const int64_t blocks = (a.n + kSumBlock - 1) / kSumBlock;
  auto* partial = reinterpret_cast<double*>(context.workspace.data());
  if (blocks > 0)
    visit_dtype(a.dtype, [&](auto x) {
      launch("sum_of_squares", partial_squares<decltype(x)>, static_cast<unsigned>(blocks), 256,
             context, static_cast<const decltype(x)*>(a.x), a.n, partial);
    });
  launch("sum_of_squares", sum_partials, 1, 256, context, partial, blocks, a.result);
}

void find_nonfinite(const NonfiniteArgs& a, const Context& context) {
  launch("find_nonfinite", begin_search, 1, 1, context, a);
  visit_dtype(a.dtype, [&](auto x) {
    launch("find_nonfinite", search_kernel<decltype(x)>, stride_blocks(a.n), 256, context, a);
  });
}

void scale(const ScaleArgs& a, const Context& context) {
  visit_dtype(a.dtype, [&](auto x) {
    launch("scale", scale_kernel<decltype(x)>, stride_blocks(a.n), 256, context, a);
  });
}

void cast(const CastArgs& a, const Context& context) {
  visit_dtype(a.dtype, [&](auto x) {
    visit_dtype(a.out_dtype, [&](auto out) {
      launch("cast", cast_kernel<decltype(x), decltype(out)>, stride_blocks(a.n), 256, context, a);
    });
  });
}

void zero(const ZeroArgs& a, const Context& context) {
  if (a.bytes > 0)
    cudaMemsetAsync(a.x, 0, static_cast<size_t>(a.bytes),
                    static_cast<cudaStream_t>(context.stream));
  check_launch("zero");
}

void store_narrow(const StoreNarrowArgs& a, const Context& context) {
  const int64_t groups = (a.cols + 254) / 128;
  const auto kernel = a.dtype == DType::kFloat64 ? narrow_kernel<double> : narrow_kernel<float>;
  launch("store_narrow", kernel, stride_blocks(a.rows * groups * 16), 256, context, a,
         format_of(a.type), make_uint2(a.key[0], a.key[1]), groups);
}

void load_narrow(const LoadNarrowArgs& a, const Context& context) {
  const auto kernel = a.dtype == DType::kFloat64 ? widen_kernel<double> : widen_kernel<float>;
  launch("load_narrow", kernel, stride_blocks(a.n), 256, context, a, format_of(a.type));
}

} // namespace pentatron::kernels::optimizer_cuda
