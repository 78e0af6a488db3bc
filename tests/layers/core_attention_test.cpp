// Every implementation of attention against a softmax over the full square of scores in fp64.
#include "pentatron/layers/core_attention.h"

#include "pentatron/base/philox.h"
#include "pentatron/kernels/attention/attention.h"
#include "pentatron/layers/core_attention_detail.h"
#include "pentatron/nn/ops/kernel_args.h"
#include "tests/nn/op_fixture.h"

#include <gtest/gtest.h>

#include <limits>

namespace pentatron::layers {
namespace {

using test::expect_close;
using test::randn;
using test::relative_error;

struct Case {
  std::string name;
  int64_t heads = 4, kv_heads = 4, head_size = 8;
  int64_t batch = 2, sequence = 13;
  std::vector<int64_t> documents = {}; ///< empty: one a sample
  int64_t window = 0;
  SoftmaxKind softmax = SoftmaxKind::kVanilla;
  double dropout = 0;
  double scale = 0.3;

  int64_t tokens() const { return batch * sequence; }
  bool plain() const {
    return (window == 0 || window >= sequence) && softmax == SoftmaxKind::kVanilla && dropout == 0;
  }
  nn::SequenceLayout layout() const {
    std::vector<uint64_t> ids;
    for (int64_t b = 0; b < batch; ++b) ids.push_back(static_cast<uint64_t>(70 + b));
    return documents.empty()
               ? nn::SequenceLayout::dense(batch, sequence, ids, at::kCPU)
               : nn::SequenceLayout::packed(batch, sequence, ids, documents, true, at::kCPU);
  }
};

constexpr uint64_t kSeed = 21;
constexpr uint32_t kSite = 5;
constexpr int64_t kHeadOffset = 3;

struct Inputs {
  at::Tensor q, k, v, sinks, dout;
};

Inputs inputs_of(const Case& c, at::ScalarType dtype) {
  // Parts of a fused projection: strided tokens.
  const int64_t d = c.head_size, width = (c.heads + 2 * c.kv_heads) * d;
  const at::Tensor qkv = randn({c.tokens(), width}, 1).to(dtype);
  const auto part = [&](int64_t begin, int64_t heads) {
    return qkv.narrow(1, begin, heads * d).unflatten(1, {heads, d});
  };
  return {part(0, c.heads), part(c.heads * d, c.kv_heads),
          part((c.heads + c.kv_heads) * d, c.kv_heads), randn({c.heads}, 2).to(dtype),
          randn({c.tokens(), c.heads * d}, 3).to(dtype)};
}

struct Results {
  at::Tensor out, dq, dk, dv, dsinks;
};

/// Whether dropout keeps a probability, from the definition of its address.
bool keeps(const Case& c, const nn::SequenceLayout& layout, int64_t head, int64_t i, int64_t j) {
  const auto row = static_cast<uint64_t>(layout.row_ids[i].item<int64_t>());
  const uint64_t feature =
      (static_cast<uint64_t>(kHeadOffset + head) << 24) + static_cast<uint64_t>(j % c.sequence);
  const PhiloxBlock words =
      philox4x32({static_cast<uint32_t>(row), static_cast<uint32_t>(row >> 32),
                  static_cast<uint32_t>(feature / 64 * 16 + feature % 16), kSite},
                 Stream(kSeed, "attention_dropout").key());
  return static_cast<double>(words[feature % 64 / 16]) >= c.dropout * 0x1p32;
}

/// Head by head, all scores at once, in fp64.
Results naive(const Case& c, const Inputs& in) {
  const nn::SequenceLayout layout = c.layout();
  const int64_t t = c.tokens();
  at::Tensor hidden = at::ones({t, t}, at::kBool);
  for (size_t doc = 0; doc + 1 < layout.document_starts.size(); ++doc) {
    for (int64_t i = layout.document_starts[doc]; i < layout.document_starts[doc + 1]; ++i) {
      for (int64_t j = layout.document_starts[doc]; j <= i; ++j) {
        if (c.window == 0 || i - j < c.window) hidden[i][j] = false;
      }
    }
  }
  const auto factors = [&](int64_t head) {
    at::Tensor f = at::zeros({t, t}, at::kDouble);
    auto a = f.accessor<double, 2>();
    const auto h = hidden.accessor<bool, 2>();
    for (int64_t i = 0; i < t; ++i) {
      for (int64_t j = 0; j < t; ++j)
        a[i][j] = !h[i][j] && keeps(c, layout, head, i, j) ? 1 / (1 - c.dropout) : 0;
    }
    return f;
  };
  const auto f = [&](const std::vector<at::Tensor>& x) {
    std::vector<at::Tensor> heads;
    for (int64_t n = 0; n < c.heads; ++n) {
      const int64_t g = n / (c.heads / c.kv_heads);
      at::Tensor s = x[0].select(1, n).matmul(x[1].select(1, g).t()) * c.scale;
      s = s.masked_fill(hidden, -std::numeric_limits<double>::infinity());
      if (c.softmax == SoftmaxKind::kOffByOne) s = at::cat({s, at::zeros({t, 1}, at::kDouble)}, 1);
      if (c.softmax == SoftmaxKind::kLearnable) s = at::cat({s, x[3][n].expand({t, 1})}, 1);
      at::Tensor p = at::softmax(s, 1).narrow(1, 0, t);
      if (c.dropout > 0) p = p * factors(n);
      heads.push_back(p.matmul(x[2].select(1, g)));
    }
    return at::cat(heads, 1);
  };
  const auto wide = [](const at::Tensor& x) { return x.to(at::kDouble); };
  const auto r =
      test::differentiate(f, {wide(in.q), wide(in.k), wide(in.v), wide(in.sinks)}, wide(in.dout));
  return {r.y, r.grads[0], r.grads[1], r.grads[2], r.grads[3]};
}

CoreAttentionOptions options_of(const Case& c) {
  return {.scale = c.scale,
          .window = c.window,
          .softmax = c.softmax,
          .dropout = c.dropout,
          .site = kSite,
          .head_offset = kHeadOffset};
}

/// The public function, whatever it chooses.
Results chosen(const Case& c, const Inputs& in) {
  test::Params params;
  test::Pass pass(c.layout());
  pass.ctx.seed = kSeed;
  pass.ctx.training = true;
  CoreAttentionOptions options = options_of(c);
  if (c.softmax == SoftmaxKind::kLearnable) options.sinks = &params.add("sinks", in.sinks);
  at::Tensor q = in.q.detach(), k = in.k.detach(), v = in.v.detach();
  for (at::Tensor* x : {&q, &k, &v}) x->requires_grad_(true);
  const at::Tensor out = core_attention(q, k, v, options, pass.ctx);
  out.backward(in.dout.clone());
  Results r{out.detach(), q.grad(), k.grad(), v.grad(), {}};
  if (options.sinks != nullptr) {
    r.dsinks = options.sinks->main_grad();
    EXPECT_EQ(options.sinks->outstanding_uses(), 0);
  }
  return r;
}

using Forward = detail::AttentionResult (*)(const detail::AttentionInputs&);
using Backward = detail::AttentionGradients (*)(const detail::AttentionInputs&,
                                                const detail::AttentionResult&, const at::Tensor&);

Results by_hand(const Case& c, const Inputs& in, Forward forward, Backward backward) {
  test::Params params;
  const nn::SequenceLayout layout = c.layout();
  detail::AttentionInputs args{.q = in.q,
                               .k = in.k,
                               .v = in.v,
                               .documents = layout.document_starts,
                               .batch = c.batch,
                               .sequence = c.sequence,
                               .options = options_of(c),
                               .row_ids = c.dropout > 0 ? layout.row_ids : at::Tensor(),
                               .seed = kSeed};
  if (c.softmax == SoftmaxKind::kLearnable) args.options.sinks = &params.add("sinks", in.sinks);
  const detail::AttentionResult saved = forward(args);
  const detail::AttentionGradients g = backward(args, saved, in.dout.view(saved.out.sizes()));
  return {saved.out.view({c.tokens(), -1}), g.dq, g.dk, g.dv, g.dsinks};
}

Results flash(const Case& c, const Inputs& in) {
  return by_hand(c, in, detail::flash_forward, detail::flash_backward);
}
Results blocked(const Case& c, const Inputs& in) {
  return by_hand(c, in, detail::blocked_forward, detail::blocked_backward);
}

/// The kernels on raw pointers: the reference for fp64, else the first that accepts.
Results kernel(const Case& c, const Inputs& in) {
  const nn::SequenceLayout layout = c.layout();
  const at::ScalarType dtype = in.q.scalar_type(), acc = nn::acc_dtype(dtype);
  at::Tensor sinks;
  if (c.softmax == SoftmaxKind::kLearnable) sinks = in.sinks.to(acc);
  if (c.softmax == SoftmaxKind::kOffByOne) sinks = at::zeros({c.heads}, acc);
  const kernels::AttentionShape shape{.dtype = dtype == at::kDouble  ? kernels::DType::kFloat64
                                               : dtype == at::kFloat ? kernels::DType::kFloat32
                                                                     : kernels::DType::kBFloat16,
                                      .heads = c.heads,
                                      .kv_heads = c.kv_heads,
                                      .head_size = c.head_size,
                                      .documents = layout.document_starts,
                                      .scale = c.scale,
                                      .window = c.window,
                                      .sinks = nn::data_or_null(sinks)};
  const auto view = [](const at::Tensor& x) {
    return kernels::HeadsView{x.data_ptr(), x.stride(0), x.stride(1)};
  };
  const at::Tensor out = at::empty(in.q.sizes(), in.q.options()),
                   lse = at::empty({c.heads, c.tokens()}, acc), dout = in.dout.view(in.q.sizes());
  kernels::attention_forward({.shape = shape,
                              .q = view(in.q),
                              .k = view(in.k),
                              .v = view(in.v),
                              .out = view(out),
                              .lse = lse.data_ptr()});
  Results r{out.view({c.tokens(), -1}), at::empty(in.q.sizes(), in.q.options()),
            at::empty(in.k.sizes(), in.k.options()), at::empty(in.v.sizes(), in.v.options()),
            at::empty({c.heads}, acc)};
  kernels::attention_backward({.shape = shape,
                               .q = view(in.q),
                               .k = view(in.k),
                               .v = view(in.v),
                               .out = view(out),
                               .dout = view(dout),
                               .lse = lse.data_ptr(),
                               .dq = view(r.dq),
                               .dk = view(r.dk),
                               .dv = view(r.dv),
                               .dsinks = sinks.defined() ? r.dsinks.data_ptr() : nullptr});
  return r;
}

struct Implementation {
  std::string name;
  Results (*run)(const Case&, const Inputs&);
  bool (*accepts)(const Case&);
};

bool any(const Case&) {
  return true;
}

const std::vector<Implementation> kImplementations = {
    {"chosen", chosen, any},
    {"flash", flash, [](const Case& c) { return c.plain(); }},
    {"blocked", blocked, any},
    {"kernel", kernel, [](const Case& c) { return c.dropout == 0; }}};

const std::vector<Case> kCases = {
    {.name = "heads"},
    {.name = "one_token", .batch = 1, .sequence = 1},
    {.name = "grouped", .heads = 6, .kv_heads = 2},
    {.name = "one_kv_head", .heads = 3, .kv_heads = 1},
    {.name = "own_head_size", .heads = 2, .kv_heads = 1, .head_size = 5},
    {.name = "many_blocks", .heads = 2, .kv_heads = 1, .batch = 1, .sequence = 290},
    {.name = "packed", .documents = {0, 4, 13, 14, 26}},
    {.name = "packed_grouped", .heads = 4, .kv_heads = 2, .documents = {0, 1, 13, 20, 26}},
    {.name = "window", .window = 4},
    {.name = "window_of_one", .window = 1},
    {.name = "window_of_the_sequence", .window = 13},
    {.name = "window_one_short", .window = 12},
    {.name = "window_over_blocks",
     .heads = 2,
     .kv_heads = 1,
     .batch = 1,
     .sequence = 290,
     .window = 140},
    {.name = "window_packed", .documents = {0, 9, 13, 15, 26}, .window = 3},
    {.name = "off_by_one", .heads = 4, .kv_heads = 2, .softmax = SoftmaxKind::kOffByOne},
    {.name = "sinks", .heads = 4, .kv_heads = 2, .softmax = SoftmaxKind::kLearnable},
    {.name = "sinks_window_packed",
     .documents = {0, 9, 13, 15, 26},
     .window = 3,
     .softmax = SoftmaxKind::kLearnable},
    {.name = "dropout", .heads = 4, .kv_heads = 2, .dropout = 0.3},
    {.name = "dropout_over_blocks",
     .heads = 2,
     .kv_heads = 2,
     .batch = 1,
     .sequence = 150,
     .dropout = 0.3},
    {.name = "everything",
     .heads = 6,
     .kv_heads = 2,
     .head_size = 7,
     .documents = {0, 9, 13, 15, 26},
     .window = 5,
     .softmax = SoftmaxKind::kLearnable,
     .dropout = 0.2},
    {.name = "dropout_window_over_blocks",
     .heads = 2,
     .kv_heads = 1,
     .batch = 1,
     .sequence = 150,
     .documents = {0, 3, 150},
     .window = 20,
     .softmax = SoftmaxKind::kOffByOne,
     .dropout = 0.5}};

struct Run {
  Implementation implementation;
  Case test_case;
};
void PrintTo(const Run& run, std::ostream* os) {
  *os << run.implementation.name << "_" << run.test_case.name;
}

/// What each implementation takes, of the cases with at least `documents` documents.
std::vector<Run> runs(size_t documents) {
  std::vector<Run> result;
  for (const Implementation& implementation : kImplementations) {
    for (const Case& c : kCases) {
      if (implementation.accepts(c) && c.layout().document_starts.size() > documents)
        result.push_back({implementation, c});
    }
  }
  return result;
}

class CoreAttention : public testing::TestWithParam<Run> {
 protected:
  const Case& test_case() const { return GetParam().test_case; }
  Results run(const Inputs& in) const { return GetParam().implementation.run(test_case(), in); }
};
class CoreAttentionDocuments : public CoreAttention {};

TEST_P(CoreAttention, IsTheSoftmaxOverTheFullSquare) {
  const Inputs in = inputs_of(test_case(), at::kDouble);
  const Results actual = run(in), expected = naive(test_case(), in);
  constexpr test::Tolerance kExact{1e-11, 1e-12};
  expect_close(actual.out, expected.out, kExact);
  expect_close(actual.dq, expected.dq, kExact);
  expect_close(actual.dk, expected.dk, kExact);
  expect_close(actual.dv, expected.dv, kExact);
  if (test_case().softmax == SoftmaxKind::kLearnable)
    expect_close(actual.dsinks, expected.dsinks, kExact);
}

TEST_P(CoreAttention, NarrowTypesAreNearFp64) {
  for (const auto& [dtype, bound] : {std::pair{at::kFloat, 2e-6}, {at::kBFloat16, 1.2e-2}}) {
    const Inputs in = inputs_of(test_case(), dtype);
    const Results actual = run(in), expected = naive(test_case(), in);
    EXPECT_EQ(actual.out.scalar_type(), dtype);
    EXPECT_LT(relative_error(actual.out, expected.out), bound) << dtype;
    EXPECT_LT(relative_error(actual.dv, expected.dv), bound) << dtype;
    if (test_case().tokens() > 1 && test_case().window != 1) {
      EXPECT_LT(relative_error(actual.dq, expected.dq), 2 * bound) << dtype;
      EXPECT_LT(relative_error(actual.dk, expected.dk), 2 * bound) << dtype;
    }
    if (test_case().softmax == SoftmaxKind::kLearnable) {
      EXPECT_LT(relative_error(actual.dsinks, expected.dsinks), 2 * bound) << dtype;
    }
  }
}

TEST_P(CoreAttentionDocuments, OneDocumentNeverTouchesAnotherOne) {
  const std::vector<int64_t> starts = test_case().layout().document_starts;
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    const Inputs in = inputs_of(test_case(), dtype);
    Inputs changed = inputs_of(test_case(), dtype);
    const int64_t begin = starts[1], count = starts[2] - starts[1];
    for (const at::Tensor& x : {changed.q, changed.k, changed.v, changed.dout})
      x.narrow(0, begin, count).mul_(-3).add_(1);
    const Results a = run(in), b = run(changed);
    EXPECT_FALSE(test::same_bits(a.out, b.out));
    for (const auto& [x, y] : {std::pair{a.out, b.out}, {a.dq, b.dq}, {a.dk, b.dk}, {a.dv, b.dv}}) {
      EXPECT_TRUE(test::same_bits(x.narrow(0, 0, begin), y.narrow(0, 0, begin))) << dtype;
      const int64_t end = begin + count, rest = x.size(0) - end;
      EXPECT_TRUE(test::same_bits(x.narrow(0, end, rest), y.narrow(0, end, rest))) << dtype;
    }
  }
}

TEST_P(CoreAttention, TheFutureAndWhatLeftTheWindowAreNotSeen) {
  const Case& c = test_case();
  const int64_t t = c.tokens() / 2; // a token in the middle changes
  const Inputs in = inputs_of(c, at::kDouble);
  Inputs changed = inputs_of(c, at::kDouble);
  for (const at::Tensor& x : {changed.k, changed.v}) x[t].mul_(-3).add_(1);
  const at::Tensor moved = run(in).out.ne(run(changed).out).any(1);
  int64_t last = t; // that sees it
  const auto starts = c.layout().document_starts;
  for (size_t d = 0; d + 1 < starts.size(); ++d)
    if (starts[d] <= t && t < starts[d + 1]) last = starts[d + 1] - 1; // its document's
  if (c.window > 0) last = std::min(last, t + c.window - 1);
  for (int64_t i = 0; i < c.tokens(); ++i) {
    const bool sees = i >= t && i <= last;
    if (!sees || c.dropout == 0) { // dropout may hide it
      EXPECT_EQ(moved[i].item<bool>(), sees) << "token " << i;
    }
  }
}

const auto kNameOf = [](const auto& info) { return testing::PrintToString(info.param); };
INSTANTIATE_TEST_SUITE_P(Cases, CoreAttention, testing::ValuesIn(runs(1)), kNameOf);
INSTANTIATE_TEST_SUITE_P(Cases, CoreAttentionDocuments, testing::ValuesIn(runs(2)), kNameOf);

TEST(CoreAttentionChoice, TakesOnlyWhatItCanDo) {
  test::Pass pass(nn::SequenceLayout::dense(1, 8, {0}, at::kCPU));
  const at::Tensor q = randn({8, 2, 4}, 1);
  const auto entry = [&](const CoreAttentionOptions& o) {
    return std::string(core_attention_entry(q, o, pass.ctx));
  };
  EXPECT_EQ(entry({.softmax = SoftmaxKind::kOffByOne, .dropout = 0.1}), "blocked");
  pass.ctx.training = true;
  EXPECT_EQ(entry({.dropout = 0.1}), "blocked");
}

TEST(CoreAttentionDropout, IsAbsentOutsideTraining) {
  const Case c{.heads = 2, .kv_heads = 2};
  const Inputs in = inputs_of(c, at::kDouble);
  test::Pass pass(c.layout());
  CoreAttentionOptions options = options_of(c);
  const at::Tensor plain = core_attention(in.q, in.k, in.v, options, pass.ctx);
  options.dropout = 0.5;
  EXPECT_TRUE(test::same_bits(core_attention(in.q, in.k, in.v, options, pass.ctx), plain));
  pass.ctx.training = true;
  EXPECT_FALSE(test::same_bits(core_attention(in.q, in.k, in.v, options, pass.ctx), plain));
}

TEST(CoreAttentionDropout, FollowsTheSampleHoweverTheBatchIsSplit) {
  const Case c{.heads = 2, .kv_heads = 2, .dropout = 0.4};
  const Inputs in = inputs_of(c, at::kDouble);
  test::Pass pass(c.layout());
  pass.ctx.training = true;
  const at::Tensor whole = core_attention(in.q, in.k, in.v, options_of(c), pass.ctx);
  const auto part = [&](const at::Tensor& x) { return x.narrow(0, c.sequence, c.sequence); };
  test::Pass second(nn::SequenceLayout::dense(1, c.sequence, {71}, at::kCPU));
  second.ctx.training = true;
  expect_close(core_attention(part(in.q), part(in.k), part(in.v), options_of(c), second.ctx),
               part(whole), {1e-13, 1e-13});
}

} // namespace
} // namespace pentatron::layers
