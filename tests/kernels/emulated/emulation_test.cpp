// The emulation itself: right kernels give what CUDA gives, and each kind of mistake is found.
#include "pentatron/kernels/common/device.cuh"
#include "tests/kernels/guarded_memory.h"

#include <gmock/gmock.h>

#include <numeric>
#include <vector>

namespace pentatron::kernels::cuda {
namespace {

using kernels::testing::GuardedMemory;
using ::testing::HasSubstr;

/// Sums of a block's threads, with the mistake that `kMistake` names.
enum class Mistake { kNone, kNoBarrier, kHalfMask, kMaskOfOthers, kEndedLane, kOtherBarrier };

template <Mistake kMistake> __global__ void sum_kernel(const float* x, float* out) {
  __shared__ float warps[32];
  float value = x[blockIdx.x * blockDim.x + threadIdx.x];
  const unsigned lane = threadIdx.x % 32;
  unsigned mask = 0xFFFFFFFFu;
  if (kMistake == Mistake::kHalfMask) mask = lane < 16 ? 0x0000FFFFu : 0xFFFF0000u;
  if (kMistake == Mistake::kMaskOfOthers) mask = 0x0000FFFFu;
  if (kMistake == Mistake::kEndedLane && threadIdx.x == 5) return;
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(mask, value, offset);
  if (lane == 0) warps[threadIdx.x / 32] = value;
  if (kMistake == Mistake::kOtherBarrier && threadIdx.x < 32) __syncwarp(0xFFFFFFFFu);
  if (kMistake == Mistake::kOtherBarrier && threadIdx.x == 0) __ballot_sync(0xFFFFFFFFu, 1);
  if (kMistake != Mistake::kNoBarrier) __syncthreads();
  float total = 0;
  for (unsigned w = 0; w < blockDim.x / 32; ++w) total += warps[w];
  if (threadIdx.x == 0) out[blockIdx.x] = total;
}

/// Sums of four blocks of 256 threads; NaN is possible.
template <Mistake mistake> std::vector<float> sums() {
  std::vector<float> x(4 * 256), out(4);
  std::iota(x.begin(), x.end(), 1.0f);
  launch("sum", sum_kernel<mistake>, 4, 256, {}, x.data(), out.data());
  return out;
}

std::string error_of(void (*call)()) {
  try {
    call();
  } catch (const emulation::Error& error) {
    return error.what();
  }
  return "";
}

TEST(Emulation, RunsAKernelAsCudaDoes) {
  const std::vector<float> right = {32896, 98432, 163968, 229504};
  for (uint64_t seed = 1; seed < 20; ++seed) {
    emulation::set_seed(seed);
    EXPECT_EQ(sums<Mistake::kNone>(), right);
  }
}

TEST(Emulation, AMissingBarrierGivesAWrongResult) {
  const std::vector<float> right = sums<Mistake::kNone>();
  for (uint64_t seed = 1; seed < 20; ++seed) {
    emulation::set_seed(seed);
    EXPECT_NE(sums<Mistake::kNoBarrier>(), right) << "seed " << seed;
  }
}

TEST(Emulation, AWrongLaneMaskIsAnError) {
  EXPECT_THAT(error_of([] { sums<Mistake::kHalfMask>(); }), HasSubstr("a shuffle reads lane"));
  EXPECT_THAT(error_of([] { sums<Mistake::kMaskOfOthers>(); }),
              HasSubstr("is not in the mask of its own call (kernel sum, block ("));
  EXPECT_THAT(error_of([] { sums<Mistake::kEndedLane>(); }), HasSubstr("lane 5 of the mask"));
  EXPECT_THAT(error_of([] { sums<Mistake::kOtherBarrier>(); }), HasSubstr("a lane of the mask"));
}

TEST(Emulation, GoesOnAfterAnError) {
  error_of([] { sums<Mistake::kHalfMask>(); });
  EXPECT_EQ(sums<Mistake::kNone>()[0], 32896);
}

__global__ void copy_kernel(const float* x, float* out, int n, int reach) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n + reach) out[i] = x[i < n ? i : 0];
}

void copy(int n, int reach) {
  const GuardedMemory x(n * sizeof(float)), out(n * sizeof(float));
  launch("copy", copy_kernel, 3, 64, {}, reinterpret_cast<const float*>(x.data()),
         reinterpret_cast<float*>(out.data()), n, reach);
}

TEST(EmulationDeathTest, AStoreOutsideItsBufferIsAnError) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  copy(130, 0);
  EXPECT_EXIT(copy(130, 1), ::testing::ExitedWithCode(1),
              "an access outside its buffer, at .* .kernel copy, block .2, 0., thread .2, 0..");
}

__global__ void pack_kernel(const float* x, float* out) {
  float in[4];
  load<4>(x, in);
  store<4>(out, in);
}

TEST(Emulation, AVectorAccessMustBeAligned) {
  alignas(16) float x[8] = {1, 2, 3, 4, 5}, out[8] = {};
  launch("pack", pack_kernel, 1, 1, {}, x, out);
  EXPECT_EQ(out[3], 4);
  const auto misaligned = [](float* from, float* to) {
    try {
      launch("pack", pack_kernel, 1, 1, {}, from, to);
    } catch (const emulation::Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_THAT(misaligned(x + 1, out), HasSubstr("not aligned to 16 bytes"));
  EXPECT_THAT(misaligned(x, out + 2), HasSubstr("not aligned to 16 bytes"));
}

TEST(Emulation, RefusesSizesThatCudaRefuses) {
  alignas(16) float x[4] = {};
  EXPECT_THROW(launch("pack", pack_kernel, 0, 1, {}, x, x), emulation::Error);
  EXPECT_THROW(launch("pack", pack_kernel, 1, 1056, {}, x, x), emulation::Error);
  EXPECT_THROW(launch("pack", pack_kernel, dim3(1, 65536), 1, {}, x, x), emulation::Error);
}

} // namespace
} // namespace pentatron::kernels::cuda
