/// Device side of common/scalar.h: element types, accumulate types, sums over a block. Included by
/// .cu files only.
#pragma once

#include <cstdint>
#include <type_traits>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "pentatron/kernels/common/cuda_launch.h"
#include "pentatron/kernels/contract.h"

namespace pentatron::kernels::cuda {

template <class T> using acc_t = std::conditional_t<std::is_same_v<T, double>, double, float>;

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

/// Sum over the block, the same in every thread, in an order that depends on blockDim alone.
/// blockDim.x is a multiple of 32.
template <class A> __device__ A block_sum(A value) {
  __shared__ A warps[32];
  for (int offset = 16; offset > 0; offset /= 2)
    value += __shfl_xor_sync(0xFFFFFFFFu, value, offset);
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

} // namespace pentatron::kernels::cuda
