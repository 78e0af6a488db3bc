// Attention of GPUs but for the kernel: what calls it makes of pairs, with a kernel of the same
// contract that computes on the CPU in place of LibTorch's.
#include "pentatron/layers/varlen_attention.h"

#include "pentatron/kernels/common/build.h"

#include "tests/layers/core_attention_cases.h"
#include "tests/nn/op_fixture.h"

#include <ATen/Context.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace pentatron::layers::detail {
namespace {

using test::expect_close;
using test::randn;
using test_cases::AttentionCase;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// FlashAttention's contract, document by document. It checks what a GPU's kernel would not.
class Reference final : public VarlenKernel {
 public:
  bool takes(const VarlenPlan&, at::ScalarType, int64_t head_size) const override {
    return head_size <= 256;
  }
  int64_t padded_head(int64_t size) const override { return (size + 7) / 8 * 8; }

  AttentionResult forward(const VarlenOperands& x) const override {
    check(x);
    const AttentionResult result{at::empty_like(x.q),
                                 at::empty({x.q.size(1), x.q.size(0)}, x.q.options())};
    each_head(x, [&](const Document& d, int64_t head, int64_t kv_head) {
      const at::Tensor s = scores(x, d, head, kv_head), lse = s.logsumexp(1);
      d.queries(result.out)
          .select(1, head)
          .copy_(at::exp(s - lse.unsqueeze(1)).matmul(d.keys(x.v).select(1, kv_head)));
      result.lse.select(0, head).narrow(0, d.query, d.num_queries).copy_(lse);
    });
    return result;
  }

  AttentionGradients backward(const VarlenOperands& x, const AttentionResult& saved,
                              const at::Tensor& dout) const override {
    check(x);
    AttentionGradients g{at::zeros_like(x.q), at::zeros_like(x.k), at::zeros_like(x.v), {}, {}};
    each_head(x, [&](const Document& d, int64_t head, int64_t kv_head) {
      const auto of_queries = [&](const at::Tensor& y) { return d.queries(y).select(1, head); };
      const auto of_keys = [&](const at::Tensor& y) { return d.keys(y).select(1, kv_head); };
      const at::Tensor lse = saved.lse.select(0, head).narrow(0, d.query, d.num_queries);
      const at::Tensor p = at::exp(scores(x, d, head, kv_head) - lse.unsqueeze(1));
      const at::Tensor dy = of_queries(dout),
                       delta = (dy * of_queries(saved.out)).sum(1, /*keepdim=*/true);
      const at::Tensor ds = (dy.matmul(of_keys(x.v).t()) - delta) * p * x.scale;
      of_queries(g.dq).add_(ds.matmul(of_keys(x.k)));
      of_keys(g.dk).add_(ds.t().matmul(of_queries(x.q)));
      of_keys(g.dv).add_(p.t().matmul(dy));
    });
    return g;
  }

 private:
  struct Document {
    int64_t query, num_queries, key, num_keys;
    at::Tensor queries(const at::Tensor& x) const { return x.narrow(0, query, num_queries); }
    at::Tensor keys(const at::Tensor& x) const { return x.narrow(0, key, num_keys); }
  };

  static void check(const VarlenOperands& x) {
    const VarlenCall& call = *x.call;
    EXPECT_EQ(x.q_ends.scalar_type(), at::kInt);
    EXPECT_EQ(x.q_ends.size(0), x.k_ends.size(0));
    EXPECT_EQ(x.q.size(0), x.q_ends[-1].item<int>());
    EXPECT_EQ(x.k.size(0), x.k_ends[-1].item<int>());
    EXPECT_EQ(x.k.sizes(), x.v.sizes());
    EXPECT_EQ(x.q.size(2), x.k.size(2));
    EXPECT_EQ(x.q.size(2) % 8, 0);
    EXPECT_EQ(x.q.size(1) % x.k.size(1), 0);
    for (const at::Tensor& one : {x.q, x.k, x.v}) { // kernels load 16 bytes at once
      EXPECT_EQ(one.stride(2), 1);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(one.const_data_ptr()) % 16, 0);
      EXPECT_EQ(one.stride(0) * one.itemsize() % 16, 0);
      EXPECT_EQ(one.stride(1) * one.itemsize() % 16, 0);
    }
    EXPECT_EQ(call.queries.longest,
              (x.q_ends.slice(0, 1) - x.q_ends.slice(0, 0, -1)).max().item<int>());
    EXPECT_EQ(call.keys.longest,
              (x.k_ends.slice(0, 1) - x.k_ends.slice(0, 0, -1)).max().item<int>());
    EXPECT_GE(call.left, -1);
    EXPECT_GE(call.right, -1);
  }

  static at::Tensor scores(const VarlenOperands& x, const Document& d, int64_t head,
                           int64_t kv_head) {
    at::Tensor s = d.queries(x.q).select(1, head).matmul(d.keys(x.k).select(1, kv_head).t());
    s = s * x.scale;
    const at::Tensor ahead = at::arange(d.num_keys).unsqueeze(0) -
                             at::arange(d.num_queries).unsqueeze(1) - (d.num_keys - d.num_queries);
    if (x.call->right >= 0) s = s.masked_fill(ahead > x.call->right, -kInfinity);
    if (x.call->left >= 0) s = s.masked_fill(-ahead > x.call->left, -kInfinity);
    EXPECT_FALSE((s == -kInfinity).all(1).any().item<bool>()) << "a query sees nothing";
    return s;
  }

  template <class Use> static void each_head(const VarlenOperands& x, Use use) {
    const std::vector<int32_t>&q = x.call->queries.ends, &k = x.call->keys.ends;
    for (size_t i = 0; i + 1 < q.size(); ++i)
      for (int64_t head = 0; head < x.q.size(1); ++head)
        use(Document{q[i], q[i + 1] - q[i], k[i], k[i + 1] - k[i]}, head,
            head / (x.q.size(1) / x.k.size(1)));
  }
};

const Reference kReference;

AttentionInputs inputs_of(const AttentionCase& c, nn::Param* sinks) {
  const int64_t d = c.head_size, e = c.values(), g = c.kv_heads;
  const at::Tensor kv = randn({c.key_tokens(), g * (d + e)}, 7); // strided tokens
  return {.q = randn({c.tokens(), c.heads, d}, 1),
          .k = kv.narrow(1, 0, g * d).unflatten(1, {g, d}),
          .v = kv.narrow(1, g * d, g * e).unflatten(1, {g, e}),
          .bias = {},
          .pairs = c.all_pairs(),
          .sequence = c.sequence,
          .options = {.mask = c.mask,
                      .scale = c.scale,
                      .window = c.window,
                      .softmax = c.softmax,
                      .sinks = c.softmax == SoftmaxKind::kLearnable ? sinks : nullptr},
          .row_ids = {}};
}

std::vector<AttentionCase> taken() {
  std::vector<AttentionCase> cases;
  for (AttentionCase c : test_cases::kCases) {
    if (c.mask == AttentionMask::kPrefix) continue;
    c.cap = c.dropout = 0;
    c.bias = false;
    cases.push_back(std::move(c));
  }
  return cases;
}

class Varlen : public testing::TestWithParam<AttentionCase> {};

TEST_P(Varlen, GivesWhatBlockedAttentionGives) {
  const AttentionCase& c = GetParam();
  test::Params params;
  nn::Param& sinks = params.add("sinks", randn({c.heads}, 2));
  AttentionInputs in = inputs_of(c, &sinks);
  std::erase_if(in.pairs,
                [](const AttentionPair& p) { return p.query_size == 0 || p.key_size == 0; });
  ASSERT_TRUE(varlen_accepts(in, kReference));
  const AttentionResult expected = blocked_forward(in), got = varlen_forward(in, kReference);
  expect_close(got.out, expected.out, {1e-12, 1e-12});
  expect_close(got.lse, expected.lse, {1e-12, 1e-12});
  const OutputGradients d{.out = randn(expected.out.sizes().vec(), 3)};
  const AttentionGradients right = blocked_backward(in, expected, d),
                           g = varlen_backward(in, got, d, kReference);
  expect_close(g.dq, right.dq, {1e-11, 1e-12});
  expect_close(g.dk, right.dk, {1e-11, 1e-12});
  expect_close(g.dv, right.dv, {1e-11, 1e-12});
  ASSERT_EQ(g.dsinks.defined(), right.dsinks.defined());
  if (right.dsinks.defined()) expect_close(g.dsinks, right.dsinks, {1e-11, 1e-12});
}

INSTANTIATE_TEST_SUITE_P(Cases, Varlen, testing::ValuesIn(taken()),
                         [](const auto& info) { return info.param.name; });

VarlenPlan plan_of(std::vector<AttentionPair> pairs, const CoreAttentionOptions& options) {
  AttentionInputs in;
  in.pairs = std::move(pairs);
  in.options = options;
  return plan_varlen(in).value();
}

TEST(VarlenPlan, PutsAllDocumentsIntoOneCallWithoutCopies) {
  const VarlenPlan plan =
      plan_of({{.query_begin = 3, .query_size = 4, .key_begin = 3, .key_size = 4},
               {.query_begin = 7, .query_size = 9, .key_begin = 7, .key_size = 9},
               {.query_begin = 16, .query_size = 1, .key_begin = 16, .key_size = 1}},
              {});
  ASSERT_EQ(plan.calls.size(), 1U) << "also with a document of one token, which sees all its keys";
  const VarlenCall& call = plan.calls[0];
  EXPECT_EQ(call.queries.ends, (std::vector<int32_t>{0, 4, 13, 14}));
  EXPECT_EQ(call.queries.longest, 9);
  EXPECT_EQ(call.queries.begin, 3);
  EXPECT_TRUE(call.queries.rows.empty());
  EXPECT_EQ(call.left, VarlenCall::kAll);
  EXPECT_EQ(call.right, 0);
}

TEST(VarlenPlan, ListsRowsThatAreNotNeighbours) {
  const VarlenPlan plan =
      plan_of({{.query_size = 2, .key_begin = 1, .key_size = 2},
               {.query_begin = 4, .query_size = 2, .key_begin = 3, .key_size = 2}},
              {.mask = AttentionMask::kFull});
  ASSERT_EQ(plan.calls.size(), 1U);
  EXPECT_EQ(plan.calls[0].queries.rows, (std::vector<int64_t>{0, 1, 4, 5}));
  EXPECT_TRUE(plan.calls[0].keys.rows.empty());
  EXPECT_EQ(plan.calls[0].keys.begin, 1);
  EXPECT_EQ(plan.calls[0].right, VarlenCall::kAll);
}

TEST(VarlenPlan, CutsWhatAWindowHides) {
  // Keys 0 to 8 lie 9 to 1 before the first query; a window of 6 shows the last five of them.
  const VarlenPlan plan = plan_of({{.query_size = 13, .key_size = 9, .offset = -9}}, {.window = 6});
  ASSERT_EQ(plan.pairs.size(), 1U);
  EXPECT_EQ(plan.pairs[0].query_size, 5);
  EXPECT_EQ(plan.pairs[0].key_begin, 4);
  EXPECT_EQ(plan.pairs[0].key_size, 5);
  EXPECT_EQ(plan.calls[0].left, 0);
  EXPECT_EQ(plan.calls[0].right, VarlenCall::kAll);
}

TEST(VarlenPlan, TellsDocumentsOfOneLength) {
  const auto one_length = [](std::vector<AttentionPair> pairs) {
    return equal_lengths(plan_of(std::move(pairs), {.mask = AttentionMask::kFull}).calls.at(0));
  };
  const AttentionPair first{.query_size = 4, .key_size = 4};
  EXPECT_TRUE(one_length({first}));
  EXPECT_TRUE(
      one_length({first, {.query_begin = 4, .query_size = 4, .key_begin = 4, .key_size = 4}}));
  EXPECT_FALSE(
      one_length({first, {.query_begin = 4, .query_size = 5, .key_begin = 4, .key_size = 5}}));
  EXPECT_FALSE(one_length({{.query_size = 3, .key_size = 4}})) << "more keys";
}

TEST(VarlenKernels, RefuseWhatTheyDoNotCompute) {
  VarlenPlan long_enough = plan_of({{.query_size = 128, .key_size = 128}}, {});
  EXPECT_FALSE(cudnn_on_gpu().takes(long_enough, at::kBFloat16, 64)) << "not in training";
  long_enough.training = true;
  EXPECT_EQ(cudnn_on_gpu().takes(long_enough, at::kBFloat16, 64),
            at::globalContext().hasCuDNN() && kernels::gpu_capability(0) >= 90);
  const VarlenPlan causal = plan_of({{.query_size = 8, .key_size = 8}}, {}),
                   window = plan_of({{.query_size = 8, .key_size = 8}}, {.window = 3});
  EXPECT_TRUE(flash_on_gpu().takes(causal, at::kBFloat16, 256));
  EXPECT_TRUE(flash_on_gpu().takes(window, at::kHalf, 192));
  EXPECT_FALSE(flash_on_gpu().takes(causal, at::kBFloat16, 264));
  EXPECT_FALSE(flash_on_gpu().takes(causal, at::kFloat, 64));
  EXPECT_TRUE(efficient_on_gpu().takes(causal, at::kFloat, 300));
  EXPECT_FALSE(efficient_on_gpu().takes(window, at::kFloat, 64));
  EXPECT_FALSE(efficient_on_gpu().takes(causal, at::kDouble, 64));
  EXPECT_EQ(flash_on_gpu().padded_head(80), 80);
  EXPECT_EQ(flash_on_gpu().padded_head(65), 72);
}

} // namespace
} // namespace pentatron::layers::detail
