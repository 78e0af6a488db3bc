/// CUDA's execution model on the CPU, as far as the kernels here use it: what a .cu file needs to
/// compile as C++ and to run thread by thread.
///
/// A launch runs its blocks one after the other, in a random order. Each thread of a block is a
/// fiber; between two barriers the threads run one after the other, each as far as it can, in an
/// order that is drawn anew each time: any thread, or a whole warp before the next. So a result
/// that depends on an order of threads that nothing guarantees comes out wrong. Shared memory is
/// filled with NaN before each block.
///
/// Errors end the launch with an exception that names kernel, block and thread: threads that wait
/// at different barriers, a lane that is not in the mask of its own call, a lane of a mask that
/// does not come, a shuffle from a lane outside the mask, a vector access that is not aligned. An
/// access outside a buffer with guard pages (tests/kernels/array.h) ends the process with a message
/// of the same kind. What this does not show: memory order between blocks, bank conflicts, the
/// order of atomics that run at once, registers and time.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#define PENTATRON_EMULATED 1

struct uint2 {
  unsigned x, y;
};
inline uint2 make_uint2(unsigned x, unsigned y) {
  return {x, y};
}
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
struct __nv_bfloat16 {
  uint16_t bits;
};
struct __half {
  uint16_t bits;
};
using cudaStream_t = void*;
using cudaError_t = int;

namespace emulation {

inline dim3 thread_index, block_index, block_size, grid_size;

/// Wrong use of CUDA by a kernel.
struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

enum class WarpCall : uint8_t { kXor, kDown, kIndex, kBallot, kSync };

/// Of the running thread.
uint64_t block_barrier(int value);
uint64_t warp_call(WarpCall call, unsigned mask, uint64_t value, int lane);
[[noreturn]] void fail(const std::string& what);

/// Runs `thread` for every thread of a grid. Throws Error.
void run(const char* kernel, dim3 blocks, dim3 threads, const std::function<void()>& thread,
         uint64_t key = 0);

/// The orders of threads that later launches draw.
void set_seed(uint64_t seed);

/// Sees launches, and chooses which of their blocks run.
class Observer {
 public:
  virtual ~Observer() = default;
  /// Before a launch; the numbers of the blocks that run, x first. `key` is equal for launches that
  /// differ in the addresses of their arguments alone.
  virtual std::vector<unsigned> launch(const char* kernel, uint64_t key, dim3 blocks,
                                       dim3 threads) = 0;
  virtual void block_begins() {}
  /// All threads of the block have passed a barrier.
  virtual void barrier() {}
  virtual void launch_ended() {}
  /// In place of writing.
  virtual void memory_set(void* p, size_t bytes) = 0;
};
inline Observer* observer = nullptr; ///< null: every block of a launch runs

/// Of a kernel and its arguments, without addresses.
template <class... Args> uint64_t launch_key(void (*kernel)(Args...), const Args&... args) {
  uint64_t hash = 1469598103934665603u;
  const auto add = [&hash](uint64_t word) { hash = (hash ^ word) * 1099511628211u; };
  const auto add_all = [&add](const auto& x) {
    for (size_t at = 0; at < sizeof x; at += 8) {
      uint64_t word = 0;
      std::memcpy(&word, reinterpret_cast<const char*>(&x) + at,
                  std::min<size_t>(8, sizeof x - at));
      const bool address = sizeof x - at >= 8 && word >> 40 != 0 && word >> 47 == 0;
      add(address ? word % 16 + 1 : word);
    }
  };
  add(reinterpret_cast<uintptr_t>(kernel));
  (add_all(args), ...);
  return hash;
}

template <class T> uint64_t to_bits(T x) {
  uint64_t bits = 0;
  std::memcpy(&bits, &x, sizeof x);
  return bits;
}
template <class T> T from_bits(uint64_t bits) {
  T x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

inline void check_aligned(const void* p, size_t bytes) {
  if (reinterpret_cast<uintptr_t>(p) % bytes != 0)
    fail("a vector access is not aligned to " + std::to_string(bytes) + " bytes");
}

} // namespace emulation

#define __global__
// Internal linkage also for templates, so that their static variables may share a section.
#define __device__ static
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __restrict__
// One section, so that all of it can be filled before a block.
#define __shared__ static __attribute__((section("cuda_shared")))
#define threadIdx (::emulation::thread_index)
#define blockIdx (::emulation::block_index)
#define blockDim (::emulation::block_size)
#define gridDim (::emulation::grid_size)

float __bfloat162float(__nv_bfloat16 x);
float __half2float(__half x);
namespace emulation {
uint16_t bf16_bits(float x);
uint16_t half_bits(float x);
} // namespace emulation
// Inline, so that the compiler sees the stores of results.
inline __nv_bfloat16 __float2bfloat16_rn(float x) {
  return {emulation::bf16_bits(x)};
}
inline __half __float2half_rn(float x) {
  return {emulation::half_bits(x)};
}

inline void __syncthreads() {
  emulation::block_barrier(0);
}
inline int __syncthreads_or(int value) {
  return static_cast<int>(emulation::block_barrier(value != 0 ? 1 : 0));
}
inline void __syncwarp(unsigned mask = 0xFFFFFFFFu) {
  emulation::warp_call(emulation::WarpCall::kSync, mask, 0, 0);
}
template <class T> T __shfl_xor_sync(unsigned mask, T value, int lanes) {
  return emulation::from_bits<T>(
      emulation::warp_call(emulation::WarpCall::kXor, mask, emulation::to_bits(value), lanes));
}
template <class T> T __shfl_down_sync(unsigned mask, T value, int lanes) {
  return emulation::from_bits<T>(
      emulation::warp_call(emulation::WarpCall::kDown, mask, emulation::to_bits(value), lanes));
}
template <class T> T __shfl_sync(unsigned mask, T value, int lane) {
  return emulation::from_bits<T>(
      emulation::warp_call(emulation::WarpCall::kIndex, mask, emulation::to_bits(value), lane));
}
inline unsigned __ballot_sync(unsigned mask, int value) {
  return static_cast<unsigned>(
      emulation::warp_call(emulation::WarpCall::kBallot, mask, value != 0 ? 1 : 0, 0));
}
inline int __popc(unsigned x) {
  return std::popcount(x);
}
template <class T> T atomicAdd(T* at, T value) {
  const T before = *at;
  *at = before + value;
  return before;
}
template <class T> T atomicMin(T* at, T value) {
  const T before = *at;
  if (value < before) *at = value;
  return before;
}
template <class T> T atomicMax(T* at, T value) {
  const T before = *at;
  if (before < value) *at = value;
  return before;
}

inline cudaError_t cudaGetLastError() {
  return 0;
}
inline const char* cudaGetErrorString(cudaError_t) {
  return "";
}
inline cudaError_t cudaMemsetAsync(void* p, int value, size_t bytes, cudaStream_t) {
  if (emulation::observer != nullptr)
    emulation::observer->memory_set(p, bytes);
  else
    std::memset(p, value, bytes);
  return 0;
}

namespace pentatron::kernels::cuda {
using std::exp;
using std::fmax;
using std::isfinite;
using std::log;
using std::sqrt;
} // namespace pentatron::kernels::cuda
