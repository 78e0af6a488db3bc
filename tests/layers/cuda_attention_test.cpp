// Attention on a GPU against the CPU in fp64: cuDNN's and FlashAttention in bf16, the
// memory-efficient kernel in fp32. Skipped where there is no GPU.
#include "pentatron/kernels/common/build.h"
#include "pentatron/layers/core_attention_detail.h"
#include "pentatron/layers/varlen_attention.h"
#include "tests/layers/core_attention_cases.h"
#include "tests/nn/op_fixture.h"

#include <algorithm>
#include <cmath>

#include <ATen/Context.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

namespace pentatron::layers::detail {
namespace {

using test::randn;
using test_cases::AttentionCase;

struct Run {
  AttentionCase test_case;
  at::ScalarType dtype;
};
void PrintTo(const Run& run, std::ostream* os) {
  *os << run.test_case.name << " " << run.dtype;
}

std::vector<Run> cuda_runs() {
  std::vector<Run> runs;
  for (AttentionCase c : test_cases::kCases) {
    c.cap = c.dropout = 0;
    c.bias = c.dlse = false;
    for (const auto dtype : {at::kBFloat16, at::kFloat, at::kDouble}) runs.push_back({c, dtype});
  }
  // Head sizes of models: 64, 128, latent attention's 192 and 128, 256.
  for (const auto& [d, e] :
       {std::pair<int64_t, int64_t>{64, 64}, {128, 128}, {192, 128}, {256, 256}})
    runs.push_back({{.name = "head_" + std::to_string(d),
                     .heads = 4,
                     .kv_heads = 2,
                     .head_size = d,
                     .sequence = 130,
                     .scale = 0.1,
                     .value_size = e},
                    at::kBFloat16});
  // Documents of one length.
  for (const AttentionMask mask : {AttentionMask::kCausal, AttentionMask::kFull})
    for (const int64_t d : {40, 64, 128})
      for (const int64_t sequence : {77, 300})
        runs.push_back(
            {{.name = fmt::format("equal_{}_{}_{}",
                                  mask == AttentionMask::kFull ? "full" : "causal", d, sequence),
              .heads = 4,
              .kv_heads = d == 40   ? 4
                          : d == 64 ? 2
                                    : 1,
              .head_size = d,
              .sequence = sequence,
              .scale = 0.1,
              .mask = mask},
             sequence == 77 ? at::kHalf : at::kBFloat16});
  return runs;
}

AttentionInputs inputs_of(const AttentionCase& c, const at::TensorOptions& options) {
  const int64_t d = c.head_size, e = c.values(), g = c.kv_heads;
  // Rounded to the type first, so that both sides see the same numbers.
  const auto on = [&](const at::Tensor& x, at::ScalarType rounded) {
    return x.to(rounded).to(options);
  };
  const auto rounded = at::kBFloat16;
  const at::Tensor kv = on(randn({c.key_tokens(), g * (d + e)}, 7), rounded);
  std::vector<AttentionPair> pairs = c.all_pairs();
  std::erase_if(pairs, [](const AttentionPair& p) { return p.query_size == 0 || p.key_size == 0; });
  return {.q = on(randn({c.tokens(), c.heads, d}, 1), rounded),
          .k = kv.narrow(1, 0, g * d).unflatten(1, {g, d}),
          .v = kv.narrow(1, g * d, g * e).unflatten(1, {g, e}),
          .bias = {},
          .pairs = std::move(pairs),
          .sequence = c.sequence,
          .options = {.mask = c.mask,
                      .scale = c.scale,
                      .window = c.window,
                      .softmax = c.softmax == SoftmaxKind::kLearnable ? SoftmaxKind::kOffByOne
                                                                      : c.softmax},
          .row_ids = {},
          .training = true};
}

double error_of(const at::Tensor& got, const at::Tensor& right) {
  const at::Tensor a = got.to(at::kCPU, at::kDouble).nan_to_num(1e9, 0, 0),
                   b = right.nan_to_num(1e9, 0, 0);
  // Where the right answer is zero, as for one token's dq, the kernels' rounding is not.
  const double least = 0.1 * std::sqrt(static_cast<double>(b.numel()));
  return (a - b).norm().item<double>() / std::max(b.norm().item<double>(), least);
}

class CudaAttention : public testing::TestWithParam<Run> {};

TEST_P(CudaAttention, EqualsTheCpuInFp64) {
  if (!kernels::built_with_cuda() || !at::hasCUDA()) GTEST_SKIP() << "no GPU";
  const auto& [c, dtype] = GetParam();
  const AttentionInputs here = inputs_of(c, at::TensorOptions(at::kDouble)),
                        gpu = inputs_of(c, at::TensorOptions(dtype).device(at::kCUDA));
  if (c.name.starts_with("equal_")) {
    EXPECT_EQ(varlen_accepts(gpu, cudnn_on_gpu()),
              at::globalContext().hasCuDNN() && kernels::gpu_capability(0) >= 90);
  }
  const double bound = dtype == at::kDouble ? 1e-10 : dtype == at::kFloat ? 1e-5 : 2e-2;
  const AttentionResult right = blocked_forward(here), got = attention_forward(gpu);
  EXPECT_LT(error_of(got.out, right.out), bound);
  EXPECT_LT(error_of(got.lse, right.lse), bound);
  const at::Tensor dout = randn(right.out.sizes().vec(), 3).to(at::kBFloat16);
  const AttentionGradients wanted = blocked_backward(here, right, {.out = dout.to(at::kDouble)});
  AttentionGradients g;
  for (const bool deterministic : {false, true}) {
    set_deterministic_attention(deterministic);
    g = attention_backward(gpu, got, {.out = dout.to(gpu.q.options())});
    EXPECT_LT(error_of(g.dq, wanted.dq), bound) << deterministic;
    EXPECT_LT(error_of(g.dk, wanted.dk), bound) << deterministic;
    EXPECT_LT(error_of(g.dv, wanted.dv), bound) << deterministic;
  }
  const AttentionGradients again = attention_backward(gpu, got, {.out = dout.to(gpu.q.options())});
  EXPECT_TRUE(at::equal(again.dq, g.dq)) << "backward must give the same bits again";
  EXPECT_TRUE(at::equal(again.dk, g.dk));
  EXPECT_TRUE(at::equal(again.dv, g.dv));
}

INSTANTIATE_TEST_SUITE_P(Cases, CudaAttention, testing::ValuesIn(cuda_runs()),
                         [](const auto& info) {
                           return info.param.test_case.name + "_" + c10::toString(info.param.dtype);
                         });

} // namespace
} // namespace pentatron::layers::detail
