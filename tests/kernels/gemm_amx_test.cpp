// The AMX entry, over emulated tiles and, where the processor has AMX, over real ones, against the
// order of sums that it documents, bit for bit.
#include <gtest/gtest.h>

#include "tests/kernels/array.h"
#include "tests/kernels/emulated_gemm.h"
#include "tests/kernels/gemm_cases.h"

namespace pentatron::kernels {
namespace {

using namespace testing;

/// The sum of block [begin, end) of k of one element: dots of 32 k, each of two chains.
float block_sum(const Problem& p, const Data& d, int64_t i, int64_t j, int64_t begin, int64_t end) {
  float sum = 0;
  for (int64_t k = begin; k < end; k += 32) {
    float chain[2] = {};
    for (int64_t e = k; e < std::min(end, k + 32); ++e) {
      const float x = flush(p.transpose_a ? d.a.get(e, i) : d.a.get(i, e));
      const float y = flush(p.transpose_b ? d.b.get(j, e) : d.b.get(e, j));
      chain[e % 2] = flushed_fma(x, y, chain[e % 2]);
    }
    sum = flush(flush(sum) + flush(chain[0] + chain[1]));
  }
  return sum;
}

/// An element as gemm.h and amx_gemm.h define it: nearly equal blocks of at most 1536 k, whole
/// steps of 32; then the old value and the bias.
float element(const Problem& p, const Data& d, float old, int64_t i, int64_t j) {
  const int64_t steps = (p.k + 31) / 32, blocks = std::max<int64_t>(1, (steps + 47) / 48);
  float sum = 0;
  int64_t begin = 0;
  for (int64_t q = 0; q < blocks; ++q) {
    const int64_t size = steps / blocks + (q < steps % blocks ? 1 : 0);
    const float part = block_sum(p, d, i, j, begin * 32, std::min(p.k, (begin + size) * 32));
    begin += size;
    sum = q == 0 ? part : part + sum;
    if (q == 0 && p.accumulate && p.out == DType::kFloat32) sum += old;
  }
  if (p.accumulate && p.out == DType::kBFloat16) sum += old;
  if (p.bias) sum += d.bias.get(0, j);
  return p.out == DType::kFloat32 ? sum : from_bf16(bf16_bits(flush(sum)));
}

void expect_bits(const Entry<GemmArgs>& entry, const Problem& p, const Data& start) {
  SCOPED_TRACE(describe(p) + " " + std::string(entry.name));
  Data d = start;
  attach(d, p.bias);
  entry.run(d.args, {});
  for (int64_t i = 0; i < p.m; ++i) {
    for (int64_t j = 0; j < p.n; ++j) {
      const float expected = element(p, start, start.c.get(i, j), i, j);
      if (std::isnan(expected)) {
        ASSERT_TRUE(std::isnan(d.c.get(i, j))) << "at " << i << "," << j;
      } else {
        ASSERT_EQ(d.c.get(i, j), expected) << "at " << i << "," << j;
      }
    }
    for (int64_t j = p.n; j < d.c.ld(); ++j)
      ASSERT_TRUE(std::isnan(d.c.get(i, j))) << "margin written at " << i << "," << j;
  }
}

void expect_bits(const Problem& p, const Data& start) {
  expect_bits(emulated_gemm_entry(), p, start);
  const Entry<GemmArgs> real = {"amx_bf16", gemm_detail::refuse_amx_bf16,
                                gemm_detail::run_amx_bf16};
  if (real.refuse({.in_dtype = DType::kBFloat16}, {}).empty()) expect_bits(real, p, start);
}

class AmxGemmBits : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string reason = emulated_gemm_entry().refuse({.in_dtype = DType::kBFloat16}, {});
    if (!reason.empty()) GTEST_SKIP() << reason;
  }
};

TEST_F(AmxGemmBits, FollowTheDocumentedOrderForAllTransposes) {
  for (const auto& [m, n, k] : {std::tuple<int64_t, int64_t, int64_t>{1, 1, 1},
                                {3, 130, 1100},
                                {16, 16, 32},
                                {33, 47, 95},
                                {64, 97, 31},
                                {65, 33, 1057},
                                {34, 17, 3100},
                                {650, 3, 670},
                                {2, 3, 900},
                                {290, 34, 70}}) {
    for (int bits = 0; bits<16; bits += m * n * k> 300000 ? 5 : 1) {
      Problem p{m, n, k, (bits & 1) != 0, (bits & 2) != 0};
      p.in = DType::kBFloat16;
      p.out = (bits & 4) != 0 ? DType::kBFloat16 : DType::kFloat32;
      p.accumulate = p.bias = (bits & 8) != 0;
      p.pad = 3;
      expect_bits(p, make(p));
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(AmxGemmBits, HoldForInfiniteNanSubnormalAndLargeElements) {
  const float subnormal = std::ldexp(1.0F, -130), small = std::ldexp(1.0F, -80);
  for (int bits = 0; bits < 8; ++bits) {
    for (const int64_t m : {5, 70}) {
      Problem p{m, 37, 66, (bits & 1) != 0, (bits & 2) != 0};
      p.in = DType::kBFloat16;
      p.out = (bits & 4) != 0 ? DType::kBFloat16 : DType::kFloat32;
      Data d = make(p);
      const auto set = [&](Matrix& x, bool turned, int64_t i, int64_t k, float value) {
        turned ? x.set(k, i, value) : x.set(i, k, value);
      };
      for (int64_t k = 0; k < p.k; ++k) {
        set(d.a, p.transpose_a, 0, k, subnormal);
        set(d.a, p.transpose_a, 1, k, k % 3 == 0 ? 1e30F : small);
        set(d.b, !p.transpose_b, 2, k, k % 2 == 0 ? small : -3e38F);
        set(d.b, !p.transpose_b, 3, k, k % 5 == 0 ? 1e30F : subnormal);
      }
      set(d.a, p.transpose_a, 4, 65, kFloatNan);
      set(d.b, !p.transpose_b, 36, 0, kFloatInf);
      expect_bits(p, d);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(AmxGemmBits, EveryWorkerHoldsTilesForItsPartOnly) {
  const Problem p{256, 256, 256, false, false, DType::kBFloat16, DType::kFloat32};
  Data d = make(p);
  attach(d, false);
  with_threads(3, [&] {
    const int before = EmulatedTiles::made;
    emulated_gemm_entry().run(d.args, {});
    EXPECT_EQ(EmulatedTiles::made - before, 3);
  });
  EXPECT_EQ(EmulatedTiles::alive, 0);
}

} // namespace
} // namespace pentatron::kernels
