/// Device side of common/scalar.h: element types, accumulate types, 16-byte accesses, sums over a
/// block, launches. Included by .cu files only. Kernels are compiled for the CPU too, by tests
/// (tests/kernels/emulated), so launches go through launch() and vector accesses through load() and
/// store().
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <type_traits>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "pentatron/kernels/common/cuda_launch.h"
#include "pentatron/kernels/contract.h"

namespace pentatron::kernels::cuda {

template <class T> using acc_t = std::conditional_t<std::is_same_v<T, double>, double, float>;

template <class T> constexpr DType dtype_of() {
  if constexpr (std::is_same_v<T, double>)
    return DType::kFloat64;
  else if constexpr (std::is_same_v<T, float>)
    return DType::kFloat32;
  else if constexpr (std::is_same_v<T, __half>)
    return DType::kFloat16;
  else
    return DType::kBFloat16;
}

__device__ inline double to_acc(double x) {
  return x;
}
__device__ inline float to_acc(float x) {
  return x;
}
__device__ inline float to_acc(__nv_bfloat16 x) {
  return __bfloat162float(x);
}
__device__ inline float to_acc(__half x) {
  return __half2float(x);
}

template <class T> __device__ T from_acc(acc_t<T> x) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>)
    return __float2bfloat16_rn(x);
  else if constexpr (std::is_same_v<T, __half>)
    return __float2half_rn(x);
  else
    return x;
}

/// As in scalar.h.
__device__ inline float ties_away(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  bits |= bits >> 15 & 1u;
  memcpy(&x, &bits, sizeof bits);
  return x;
}

/// exp and 1 / x to a few units in the last place, in an instruction or two: enough where results
/// are rounded to 16 bits.
__device__ inline float fast_exp(float x) {
#ifdef PENTATRON_EMULATED
  return std::exp(x);
#else
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * 1.44269504088896341f));
  return y;
#endif
}
__device__ inline float fast_reciprocal(float x) {
#ifdef PENTATRON_EMULATED
  return 1 / x;
#else
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#endif
}

/// Element i of a short vector of any dtype, or `missing` if p is null.
template <class A> __device__ A load_any(const void* p, DType dtype, int64_t i, A missing) {
  if (p == nullptr) return missing;
  switch (dtype) {
  case DType::kFloat64:
    return static_cast<A>(static_cast<const double*>(p)[i]);
  case DType::kFloat32:
    return static_cast<A>(static_cast<const float*>(p)[i]);
  case DType::kBFloat16:
    return static_cast<A>(to_acc(static_cast<const __nv_bfloat16*>(p)[i]));
  case DType::kFloat16:
    return static_cast<A>(to_acc(static_cast<const __half*>(p)[i]));
  }
  return missing;
}

/// How many elements lie in 16 bytes, the widest access of a thread.
template <class T> constexpr int kPack = 16 / static_cast<int>(sizeof(T));

/// V neighbouring elements in the accumulate type: one, or kPack<T> of an address that is a
/// multiple of 16.
template <int V, class T> __device__ void load(const T* p, acc_t<T> (&out)[V]) {
  static_assert(V == 1 || V == kPack<T>);
  if constexpr (V == 1) {
    out[0] = to_acc(*p);
  } else {
#ifdef PENTATRON_EMULATED
    emulation::check_aligned(p, 16);
#endif
    const uint4 raw = *reinterpret_cast<const uint4*>(p);
    T values[V];
    memcpy(values, &raw, sizeof raw);
    for (int i = 0; i < V; ++i) out[i] = to_acc(values[i]);
  }
}
/// V elements as they are, by 16 bytes.
template <int V, class T> __device__ void load_raw(const T* p, T (&out)[V]) {
  static_assert(V == kPack<T>);
#ifdef PENTATRON_EMULATED
  emulation::check_aligned(p, 16);
#endif
  const uint4 raw = *reinterpret_cast<const uint4*>(p);
  memcpy(out, &raw, sizeof raw);
}
/// Rounds and writes as load() reads.
template <int V, class T> __device__ void store(T* p, const acc_t<T> (&in)[V]) {
  if constexpr (V == 1) {
    *p = from_acc<T>(in[0]);
  } else {
#ifdef PENTATRON_EMULATED
    emulation::check_aligned(p, 16);
#endif
    T values[V];
    for (int i = 0; i < V; ++i) values[i] = from_acc<T>(in[i]);
    uint4 raw;
    memcpy(&raw, values, sizeof raw);
    *reinterpret_cast<uint4*>(p) = raw;
  }
}

/// W neighbouring elements, a multiple of kPack<T>: by 16 bytes, or each alone.
template <bool packs, int W, class T> __device__ void load_row(const T* p, acc_t<T> (&out)[W]) {
  constexpr int V = packs ? kPack<T> : 1;
  for (int begin = 0; begin < W; begin += V) {
    acc_t<T> part[V];
    load<V>(p + begin, part);
    for (int v = 0; v < V; ++v) out[begin + v] = part[v];
  }
}
template <bool packs, int W, class T, class A> __device__ void store_row(T* p, const A (&in)[W]) {
  constexpr int V = packs ? kPack<T> : 1;
  for (int begin = 0; begin < W; begin += V) {
    acc_t<T> part[V];
    for (int v = 0; v < V; ++v) part[v] = static_cast<acc_t<T>>(in[begin + v]);
    store<V>(p + begin, part);
  }
}

/// Elements i to i + V of a vector, or `missing` if p is null. By 16 bytes where they lie so.
template <class T, int V, class A> __device__ void load_part(const T* p, A (&out)[V]) {
  if constexpr (V % kPack<T> == 0) {
    if (reinterpret_cast<uintptr_t>(p) % 16 == 0) {
      acc_t<T> part[V];
      load_row<true>(p, part);
      for (int v = 0; v < V; ++v) out[v] = static_cast<A>(part[v]);
      return;
    }
  }
  for (int v = 0; v < V; ++v) out[v] = static_cast<A>(to_acc(p[v]));
}
template <int V, class A>
__device__ void load_any(const void* p, DType dtype, int64_t i, A missing, A (&out)[V]) {
  if (p == nullptr) {
    for (int v = 0; v < V; ++v) out[v] = missing;
    return;
  }
  switch (dtype) {
  case DType::kFloat64:
    return load_part(static_cast<const double*>(p) + i, out);
  case DType::kFloat32:
    return load_part(static_cast<const float*>(p) + i, out);
  case DType::kBFloat16:
    return load_part(static_cast<const __nv_bfloat16*>(p) + i, out);
  case DType::kFloat16:
    return load_part(static_cast<const __half*>(p) + i, out);
  }
}

/// Whether rows at these addresses, null ones left out, with these strides and sizes in elements
/// can be read by load<kPack<T>>.
template <class T>
bool takes_packs(std::initializer_list<const void*> rows, std::initializer_list<int64_t> extents) {
  for (const void* p : rows)
    if (reinterpret_cast<uintptr_t>(p) % 16 != 0) return false;
  for (const int64_t extent : extents)
    if (extent % kPack<T> != 0) return false;
  return true;
}

/// Sum over the warp, the same in every lane.
template <class A> __device__ A warp_sum(A value) {
  for (int offset = 16; offset > 0; offset /= 2)
    value += __shfl_xor_sync(0xFFFFFFFFu, value, offset);
  return value;
}

/// Sum over the block, the same in every thread, in an order that depends on blockDim alone.
/// blockDim.x is a multiple of 32.
template <class A> __device__ A block_sum(A value) {
  __shared__ A warps[32];
  value = warp_sum(value);
  __syncthreads(); // `warps` may still be read by the sum before
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
  __syncthreads();
  A total = 0;
  for (unsigned w = 0; w < blockDim.x / 32; ++w) total += warps[w];
  return total;
}

/// Calls f(T{}) with the device type of `dtype`.
template <class F> void visit_dtype(DType dtype, F&& f) {
  switch (dtype) {
  case DType::kFloat64:
    return f(double{});
  case DType::kFloat32:
    return f(float{});
  case DType::kBFloat16:
    return f(__nv_bfloat16{});
  case DType::kFloat16:
    return f(__half{});
  }
}

/// f(T{}, Out{}) for two dtypes of which both are float64 or none. A kernel must not be chosen by
/// `if constexpr` inside of nested lambdas: nvcc 13.0 leaves out the launch for doubles there,
/// without a word, so that nothing runs.
template <class T, class F> void visit_second(DType out_dtype, F&& f) {
  if constexpr (std::is_same_v<T, double>) {
    f(double{}, double{});
  } else if (out_dtype == DType::kFloat32) {
    f(T{}, float{});
  } else if (out_dtype == DType::kBFloat16) {
    f(T{}, __nv_bfloat16{});
  } else {
    f(T{}, __half{});
  }
}
template <class F> void visit_pair(DType dtype, DType out_dtype, F&& f) {
  switch (dtype) {
  case DType::kFloat64:
    return visit_second<double>(out_dtype, f);
  case DType::kFloat32:
    return visit_second<float>(out_dtype, f);
  case DType::kBFloat16:
    return visit_second<__nv_bfloat16>(out_dtype, f);
  case DType::kFloat16:
    return visit_second<__half>(out_dtype, f);
  }
}

/// Threads for a row of `cols`: whole warps, at most 256.
inline unsigned row_threads(int64_t cols) {
  const int64_t warps = (cols + 31) / 32;
  return static_cast<unsigned>(32 * (warps < 1 ? 1 : warps > 8 ? 8 : warps));
}

/// Blocks of 256 threads for a grid-stride loop over n.
inline unsigned stride_blocks(int64_t n) {
  const int64_t blocks = (n + 255) / 256;
  return static_cast<unsigned>(blocks < 1 ? 1 : blocks > 65535 ? 65535 : blocks);
}

inline void check_launch(const char* op) {
  const cudaError_t code = cudaGetLastError();
  check_cuda_launch(op, static_cast<int>(code), cudaGetErrorString(code));
}

/// Queues kernel(args...) on the context's stream. Throws Error, naming `op`, if CUDA refuses.
template <class... Parameters>
void launch(const char* op, void (*kernel)(Parameters...), dim3 blocks, dim3 threads,
            const Context& context, std::type_identity_t<Parameters>... args) {
#ifdef PENTATRON_EMULATED
  static_cast<void>(context);
  emulation::run(
      op, blocks, threads, [&] { kernel(args...); }, emulation::launch_key(kernel, args...));
#else
  kernel<<<blocks, threads, 0, static_cast<cudaStream_t>(context.stream)>>>(args...);
  check_launch(op);
#endif
}

} // namespace pentatron::kernels::cuda
