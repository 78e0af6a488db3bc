/// Common parts of all kernels: element types, the launch context, and the ordered list of
/// implementations.
///
/// A kernel is a folder: <op>.h (the contract: arguments struct, shapes, accumulate type),
/// <op>_reference.cpp (the scalar definition of correct, any dtype), <op>_simd.cpp or a file
/// for each instruction set (entries for AVX2, AVX-512, AVX512-BF16), <op>_cuda.cu, and <op>.cpp
/// with the ordered list: the first entry that does not refuse runs.
///
/// Accumulate type: double for kFloat64, float for everything else; it holds sums, statistics and
/// gradients of parameters.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace pentatron::kernels {

enum class DType : uint8_t { kFloat64, kFloat32, kBFloat16, kFloat16 };

constexpr DType acc_dtype(DType t) {
  return t == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
}
constexpr size_t element_size(DType t) {
  return t == DType::kFloat64 ? 8 : t == DType::kFloat32 ? 4 : 2;
}
std::string_view name(DType t);

enum class Device : uint8_t { kCpu, kCuda };

/// Where a kernel runs. On CUDA all pointers are device pointers and work is queued on `stream`.
/// `workspace` is scratch memory of at least the size that the operator's `workspace_bytes(args)`
/// returns; its content is undefined before and after.
struct Context {
  Device device = Device::kCpu;
  void* stream = nullptr; ///< cudaStream_t
  std::span<std::byte> workspace = {};
};

/// One implementation of an operator. `refuse` returns an empty string when it can run the
/// arguments, else the reason.
template <class Args> struct Entry {
  std::string_view
      name; ///< "reference", "avx2", "avx512", "avx512_bf16", "amx_bf16", "mkl", "cuda", ...
  std::string (*refuse)(const Args&, const Context&);
  void (*run)(const Args&, const Context&);
};

/// What the processor and the kernel offer, found once. PENTATRON_CPU in the environment lowers it
/// (for tests): to `reference` (nothing), `avx2`, `avx512` (without bf16) or `avx512_bf16`
/// (everything but AMX).
struct CpuFeatures {
  bool avx2 = false;        ///< AVX2, FMA and F16C
  bool avx512 = false;      ///< F, BW, DQ, VL
  bool avx512_bf16 = false; ///< vdpbf16ps
  bool amx_bf16 = false;    ///< amx-tile, amx-bf16, and the kernel's permission to use tiles
};
const CpuFeatures& cpu_features();

/// Threads a CPU kernel uses: the caller's OpenMP setting (each rank's thread sets its own through
/// at::set_num_threads).
int num_threads();

} // namespace pentatron::kernels
