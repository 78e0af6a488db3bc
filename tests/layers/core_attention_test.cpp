// Every implementation of attention against a softmax over the full square of scores in fp64.
#include "pentatron/layers/core_attention.h"

#include "pentatron/base/philox.h"
#include "pentatron/kernels/attention/attention.h"
#include "pentatron/layers/core_attention_detail.h"
#include "pentatron/nn/ops/kernel_args.h"
#include "tests/layers/core_attention_cases.h"
#include "tests/nn/op_fixture.h"
#include "tests/support/ranks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

namespace pentatron::layers {
namespace {

using test::expect_close;
using test::randn;
using test::relative_error;

using test_cases::AttentionCase;
using test_cases::kCases;

constexpr uint64_t kSeed = 21;
constexpr uint32_t kSite = 5;
constexpr int64_t kHeadOffset = 3;

struct CoreInputs {
  at::Tensor q, k, v, sinks, bias, dout, dlse;
};

CoreInputs core_inputs_of(const AttentionCase& c, at::ScalarType dtype) {
  // Parts of a fused projection: strided tokens.
  const int64_t d = c.head_size, e = c.values(), g = c.kv_heads;
  const at::Tensor q = randn({c.tokens(), (c.heads + 3) * d}, 1).to(dtype),
                   kv = randn({c.key_tokens(), g * (d + e)}, 7).to(dtype);
  const auto part = [](const at::Tensor& x, int64_t begin, int64_t heads, int64_t size) {
    return x.narrow(1, begin, heads * size).unflatten(1, {heads, size});
  };
  const at::ScalarType acc = nn::acc_dtype(dtype);
  return {part(q, d, c.heads, d),
          part(kv, 0, g, d),
          part(kv, g * d, g, e),
          randn({c.heads}, 2).to(dtype),
          c.bias ? randn({c.heads, 2 * c.span() - 1}, 5).to(acc) : at::Tensor(),
          randn({c.tokens(), c.heads * e}, 3).to(dtype),
          c.dlse ? randn({c.tokens(), c.heads}, 6).to(acc) : at::Tensor()};
}

struct CoreResults {
  at::Tensor out, lse, dq, dk, dv, dsinks, dbias;
};

/// Whether dropout keeps a probability, from the definition of its address.
bool keeps(const AttentionCase& c, const nn::SequenceLayout& layout, int64_t head, int64_t i,
           int64_t key_position) {
  const auto row = static_cast<uint64_t>(layout.row_ids[i].item<int64_t>());
  const uint64_t feature =
      (static_cast<uint64_t>(kHeadOffset + head) << 24) + static_cast<uint64_t>(key_position);
  const PhiloxBlock words =
      philox4x32({static_cast<uint32_t>(row), static_cast<uint32_t>(row >> 32),
                  static_cast<uint32_t>(feature / 64 * 16 + feature % 16), kSite},
                 Stream(kSeed, "attention_dropout").key());
  return static_cast<double>(words[feature % 64 / 16]) >= c.dropout * 0x1p32;
}

/// What the definition says of every query and key.
struct Square {
  explicit Square(const AttentionCase& c)
      : hidden(at::ones({c.tokens(), c.key_tokens()}, at::kBool)),
        column(at::zeros({c.tokens(), c.key_tokens()}, at::kLong)),
        key_position(at::zeros({c.tokens(), c.key_tokens()}, at::kLong)),
        in_pair(at::zeros({c.tokens()}, at::kBool)) {
    auto hides = hidden.accessor<bool, 2>();
    auto columns = column.accessor<int64_t, 2>();
    auto positions = key_position.accessor<int64_t, 2>();
    for (const AttentionPair& pair : c.all_pairs()) {
      if (pair.key_size > 0) in_pair.narrow(0, pair.query_begin, pair.query_size).fill_(true);
      for (int64_t i = 0; i < pair.query_size; ++i) {
        for (int64_t j = 0; j < pair.key_size; ++j) {
          const int64_t row = pair.query_begin + i, key = pair.key_begin + j;
          hides[row][key] = !c.sees(pair, i, j);
          columns[row][key] = c.span() - 1 + i - (j + pair.offset);
          positions[row][key] = pair.key_position + j;
        }
      }
    }
  }
  at::Tensor hidden, column, key_position, in_pair;
};

/// Head by head, all scores at once, in fp64.
CoreResults naive(const AttentionCase& c, const CoreInputs& in) {
  const nn::SequenceLayout layout = c.layout();
  const int64_t t = c.tokens(), keys = c.key_tokens();
  const Square square(c);
  const bool sinks = c.softmax != SoftmaxKind::kVanilla;
  const at::Tensor blind =
      sinks ? square.in_pair.logical_not() : square.hidden.all(1); // queries without a sum
  const auto factors = [&](int64_t head) {
    at::Tensor f = at::zeros({t, keys}, at::kDouble);
    auto a = f.accessor<double, 2>();
    const auto h = square.hidden.accessor<bool, 2>();
    const auto position = square.key_position.accessor<int64_t, 2>();
    for (int64_t i = 0; i < t; ++i) {
      for (int64_t j = 0; j < keys; ++j) {
        a[i][j] = !h[i][j] && keeps(c, layout, head, i, position[i][j]) ? 1 / (1 - c.dropout) : 0;
      }
    }
    return f;
  };
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  at::Tensor lse_of_all;
  const auto f = [&](const std::vector<at::Tensor>& x) {
    std::vector<at::Tensor> heads, lses;
    for (int64_t n = 0; n < c.heads; ++n) {
      const int64_t g = n / (c.heads / c.kv_heads);
      at::Tensor s = x[0].select(1, n).matmul(x[1].select(1, g).t()) * c.scale;
      if (c.cap > 0) s = (s / c.cap).tanh() * c.cap;
      if (c.bias) s = s + x[4][n].index_select(0, square.column.flatten()).view({t, keys});
      s = s.masked_fill(square.hidden, -kInfinity);
      if (c.softmax == SoftmaxKind::kOffByOne) s = at::cat({s, at::zeros({t, 1}, at::kDouble)}, 1);
      if (c.softmax == SoftmaxKind::kLearnable) s = at::cat({s, x[3][n].expand({t, 1})}, 1);
      s = s.masked_fill(blind.unsqueeze(1), 0);
      lses.push_back(s.logsumexp(1).masked_fill(blind, -kInfinity));
      at::Tensor p = at::softmax(s, 1).narrow(1, 0, keys).masked_fill(blind.unsqueeze(1), 0);
      if (c.dropout > 0) p = p * factors(n);
      heads.push_back(p.matmul(x[2].select(1, g)));
    }
    lse_of_all = at::stack(lses, 1);
    return at::cat({at::cat(heads, 1).flatten(), lse_of_all.flatten()});
  };
  const auto wide = [](const at::Tensor& x) { return x.to(at::kDouble); };
  const at::Tensor dlse = c.dlse ? wide(in.dlse) : at::zeros({t, c.heads}, at::kDouble);
  const auto r = test::differentiate(f,
                                     {wide(in.q), wide(in.k), wide(in.v), wide(in.sinks),
                                      c.bias ? wide(in.bias) : at::zeros({1}, at::kDouble)},
                                     at::cat({wide(in.dout).flatten(), dlse.flatten()}));
  return {r.y.narrow(0, 0, in.dout.numel()).view(in.dout.sizes()),
          lse_of_all.detach(),
          r.grads[0],
          r.grads[1],
          r.grads[2],
          r.grads[3],
          r.grads[4]};
}

CoreAttentionOptions options_of(const AttentionCase& c) {
  return {.mask = c.mask,
          .scale = c.scale,
          .window = c.window,
          .cap = c.cap,
          .softmax = c.softmax,
          .dropout = c.dropout,
          .site = kSite,
          .head_offset = kHeadOffset};
}

/// The public function, whatever it chooses.
CoreResults chosen(const AttentionCase& c, const CoreInputs& in) {
  test::Params params;
  test::Pass pass(c.layout());
  pass.ctx.seed = kSeed;
  pass.ctx.training = true;
  CoreAttentionOptions options = options_of(c);
  if (c.softmax == SoftmaxKind::kLearnable) options.sinks = &params.add("sinks", in.sinks);
  AttentionOperands x{in.q.detach(), in.k.detach(), in.v.detach(), {}};
  if (c.bias) x.bias = in.bias.detach();
  for (at::Tensor* leaf : {&x.q, &x.k, &x.v, &x.bias}) {
    if (leaf->defined()) leaf->requires_grad_(true);
  }
  const AttentionOutputs y = core_attention(x, c.all_pairs(), options, pass.ctx);
  if (c.dlse) {
    torch::autograd::backward({y.out, y.lse}, {in.dout.clone(), in.dlse.clone()});
  } else {
    y.out.backward(in.dout.clone());
  }
  CoreResults r{y.out.detach(), y.lse.detach(), x.q.grad(), x.k.grad(), x.v.grad(), {}, {}};
  if (c.bias) r.dbias = x.bias.grad();
  if (options.sinks != nullptr) {
    r.dsinks = options.sinks->main_grad();
    EXPECT_EQ(options.sinks->outstanding_uses(), 0);
  }
  return r;
}

detail::AttentionInputs arguments(const AttentionCase& c, const CoreInputs& in) {
  std::vector<AttentionPair> pairs = c.all_pairs();
  std::erase_if(pairs, [](const AttentionPair& p) { return p.query_size == 0 || p.key_size == 0; });
  return {.q = in.q,
          .k = in.k,
          .v = in.v,
          .bias = in.bias,
          .pairs = pairs,
          .sequence = c.sequence,
          .options = options_of(c),
          .row_ids = c.dropout > 0 ? c.layout().row_ids : at::Tensor(),
          .seed = kSeed};
}

using Forward = detail::AttentionResult (*)(const detail::AttentionInputs&);
using Backward = detail::AttentionGradients (*)(const detail::AttentionInputs&,
                                                const detail::AttentionResult&,
                                                const detail::OutputGradients&);

CoreResults by_hand(const AttentionCase& c, const CoreInputs& in, Forward forward,
                    Backward backward) {
  test::Params params;
  detail::AttentionInputs args = arguments(c, in);
  if (c.softmax == SoftmaxKind::kLearnable) args.options.sinks = &params.add("sinks", in.sinks);
  const detail::AttentionResult saved = forward(args);
  detail::OutputGradients d{.out = in.dout.view(saved.out.sizes())};
  if (c.dlse) d.lse = in.dlse.t().contiguous();
  const detail::AttentionGradients g = backward(args, saved, d);
  return {saved.out.view({c.tokens(), -1}), saved.lse.t(), g.dq, g.dk, g.dv, g.dsinks, g.dbias};
}

CoreResults flash(const AttentionCase& c, const CoreInputs& in) {
  return by_hand(c, in, detail::flash_forward, detail::flash_backward);
}
CoreResults blocked(const AttentionCase& c, const CoreInputs& in) {
  return by_hand(c, in, detail::blocked_forward, detail::blocked_backward);
}

/// The kernels on raw pointers: the reference for fp64, else the first that accepts.
CoreResults kernel(const AttentionCase& c, const CoreInputs& in) {
  const at::ScalarType dtype = in.q.scalar_type(), acc = nn::acc_dtype(dtype);
  at::Tensor sinks;
  if (c.softmax == SoftmaxKind::kLearnable) sinks = in.sinks.to(acc);
  if (c.softmax == SoftmaxKind::kOffByOne) sinks = at::zeros({c.heads}, acc);
  const detail::AttentionInputs args = arguments(c, in);
  const kernels::AttentionShape shape{.dtype = nn::kernel_dtype(dtype),
                                      .heads = c.heads,
                                      .kv_heads = c.kv_heads,
                                      .head_size = c.head_size,
                                      .value_size = c.value_size,
                                      .queries = c.tokens(),
                                      .pairs = args.pairs,
                                      .mask = c.mask,
                                      .scale = c.scale,
                                      .cap = c.cap,
                                      .window = c.window,
                                      .sinks = nn::data_or_null(sinks),
                                      .bias = nn::data_or_null(in.bias),
                                      .span = args.span(),
                                      .dropout = c.dropout > 0 ? detail::dropout_of(args)
                                                               : kernels::AttentionDropout{}};
  const auto view = [](const at::Tensor& x) {
    return kernels::HeadsView{x.data_ptr(), x.stride(0), x.stride(1)};
  };
  const detail::AttentionResult y = detail::make_result(args);
  const detail::AttentionGradients g = detail::make_gradients(args);
  const at::Tensor dout = in.dout.view(y.out.sizes()), dsinks = at::zeros({c.heads}, acc),
                   dlse = c.dlse ? in.dlse.t().contiguous() : at::Tensor();
  kernels::attention_forward({.shape = shape,
                              .q = view(in.q),
                              .k = view(in.k),
                              .v = view(in.v),
                              .out = view(y.out),
                              .lse = y.lse.data_ptr()});
  kernels::attention_backward({.shape = shape,
                               .q = view(in.q),
                               .k = view(in.k),
                               .v = view(in.v),
                               .out = view(y.out),
                               .dout = view(dout),
                               .lse = y.lse.data_ptr(),
                               .dlse = nn::data_or_null(dlse),
                               .dq = view(g.dq),
                               .dk = view(g.dk),
                               .dv = view(g.dv),
                               .dsinks = sinks.defined() ? dsinks.data_ptr() : nullptr,
                               .dbias = nn::data_or_null(g.dbias)});
  return {y.out.view({c.tokens(), -1}), y.lse.t(), g.dq, g.dk, g.dv, dsinks, g.dbias};
}

struct Implementation {
  std::string name;
  CoreResults (*run)(const AttentionCase&, const CoreInputs&);
  bool (*accepts)(const AttentionCase&);
};

bool any_case(const AttentionCase&) {
  return true;
}

const std::vector<Implementation> kImplementations = {
    {"chosen", chosen, any_case},
    {"flash", flash,
     [](const AttentionCase& c) {
       return !c.dlse && detail::flash_accepts(arguments(c, core_inputs_of(c, at::kDouble)));
     }},
    {"blocked", blocked, any_case},
    {"kernel", kernel, any_case}};

struct CoreRun {
  Implementation implementation;
  AttentionCase test_case;
};
void PrintTo(const CoreRun& run, std::ostream* os) {
  *os << run.implementation.name << "_" << run.test_case.name;
}

/// What each implementation takes, of the cases with at least so many pairs that have keys.
std::vector<CoreRun> core_runs(size_t pairs) {
  std::vector<CoreRun> result;
  for (const Implementation& implementation : kImplementations) {
    for (const AttentionCase& c : kCases) {
      const std::vector<AttentionPair> all = c.all_pairs();
      const auto full = std::ranges::count_if(
          all, [](const AttentionPair& p) { return p.query_size > 0 && p.key_size > 0; });
      if (implementation.accepts(c) && static_cast<size_t>(full) >= pairs)
        result.push_back({implementation, c});
    }
  }
  return result;
}

class CoreAttention : public testing::TestWithParam<CoreRun> {
 protected:
  const AttentionCase& test_case() const { return GetParam().test_case; }
  CoreResults run(const CoreInputs& in) const {
    return GetParam().implementation.run(test_case(), in);
  }
};
class CoreAttentionDocuments : public CoreAttention {};

/// Minus infinity in the same places, and close elsewhere.
void expect_lse(const at::Tensor& actual, const at::Tensor& expected, test::Tolerance tolerance) {
  const at::Tensor none = expected.isinf();
  EXPECT_TRUE(at::equal(actual.isinf(), none));
  EXPECT_TRUE((actual.masked_select(none) < 0).all().item<bool>());
  expect_close(actual.to(at::kDouble).masked_fill(none, 0), expected.masked_fill(none, 0),
               tolerance);
}

TEST_P(CoreAttention, IsTheSoftmaxOverTheFullSquare) {
  const CoreInputs in = core_inputs_of(test_case(), at::kDouble);
  const CoreResults actual = run(in), expected = naive(test_case(), in);
  constexpr test::Tolerance kExact{1e-11, 1e-12};
  expect_close(actual.out, expected.out, kExact);
  expect_lse(actual.lse, expected.lse, kExact);
  if (test_case().bias) expect_close(actual.dbias, expected.dbias, kExact);
  expect_close(actual.dq, expected.dq, kExact);
  expect_close(actual.dk, expected.dk, kExact);
  expect_close(actual.dv, expected.dv, kExact);
  if (test_case().softmax == SoftmaxKind::kLearnable)
    expect_close(actual.dsinks, expected.dsinks, kExact);
}

TEST_P(CoreAttention, NarrowTypesAreNearFp64) {
  for (const auto& [dtype, bound] : {std::pair{at::kFloat, 2e-6}, {at::kBFloat16, 1.2e-2}}) {
    const CoreInputs in = core_inputs_of(test_case(), dtype);
    const CoreResults actual = run(in), expected = naive(test_case(), in);
    EXPECT_EQ(actual.out.scalar_type(), dtype);
    const at::ScalarType acc = nn::acc_dtype(dtype);
    EXPECT_EQ(actual.lse.scalar_type(), acc);
    if (test_case().bias) {
      EXPECT_EQ(actual.dbias.scalar_type(), acc);
      EXPECT_LT(relative_error(actual.dbias, expected.dbias), 2 * bound) << dtype;
    }
    EXPECT_LT(relative_error(actual.out, expected.out), bound) << dtype;
    EXPECT_LT(relative_error(actual.dv, expected.dv), bound) << dtype;
    expect_lse(actual.lse, expected.lse, {10 * bound, 10 * bound});
    if (test_case().tokens() > 1 && test_case().window != 1) {
      EXPECT_LT(relative_error(actual.dq, expected.dq), 2 * bound) << dtype;
      EXPECT_LT(relative_error(actual.dk, expected.dk), 2 * bound) << dtype;
    }
    if (test_case().softmax == SoftmaxKind::kLearnable) {
      EXPECT_LT(relative_error(actual.dsinks, expected.dsinks), 2 * bound) << dtype;
    }
  }
}

TEST_P(CoreAttentionDocuments, OnePairNeverTouchesAnotherOne) {
  const AttentionPair pair = test_case().all_pairs()[1];
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    const CoreInputs in = core_inputs_of(test_case(), dtype);
    CoreInputs changed = core_inputs_of(test_case(), dtype);
    for (const at::Tensor& x : {changed.q, changed.dout})
      x.narrow(0, pair.query_begin, pair.query_size).mul_(-3).add_(1);
    for (const at::Tensor& x : {changed.k, changed.v})
      x.narrow(0, pair.key_begin, pair.key_size).mul_(-3).add_(1);
    const CoreResults a = run(in), b = run(changed);
    const auto same_outside = [&](const at::Tensor& x, const at::Tensor& y, int64_t begin,
                                  int64_t size) {
      const int64_t rest = x.size(0) - begin - size;
      EXPECT_TRUE(test::same_bits(x.narrow(0, 0, begin), y.narrow(0, 0, begin))) << dtype;
      EXPECT_TRUE(test::same_bits(x.narrow(0, begin + size, rest), y.narrow(0, begin + size, rest)))
          << dtype;
    };
    for (const auto& [x, y] : {std::pair{a.out, b.out}, {a.lse, b.lse}, {a.dq, b.dq}})
      same_outside(x, y, pair.query_begin, pair.query_size);
    for (const auto& [x, y] : {std::pair{a.dk, b.dk}, {a.dv, b.dv}})
      same_outside(x, y, pair.key_begin, pair.key_size);
  }
}

TEST_P(CoreAttention, OnlyTheVisibleKeysAreSeen) {
  const AttentionCase& c = test_case();
  const int64_t t = c.key_tokens() / 2; // a key in the middle changes
  const CoreInputs in = core_inputs_of(c, at::kDouble);
  CoreInputs changed = core_inputs_of(c, at::kDouble);
  for (const at::Tensor& x : {changed.k, changed.v}) x[t].mul_(-3).add_(1);
  const at::Tensor moved = run(in).out.ne(run(changed).out).any(1),
                   hidden = Square(c).hidden.select(1, t);
  for (int64_t i = 0; i < c.tokens(); ++i) {
    const bool sees = !hidden[i].item<bool>();
    if (!sees || c.dropout == 0) { // dropout may hide it
      EXPECT_EQ(moved[i].item<bool>(), sees) << "query " << i;
    }
  }
}

const auto kCoreNameOf = [](const auto& info) { return testing::PrintToString(info.param); };
INSTANTIATE_TEST_SUITE_P(Cases, CoreAttention, testing::ValuesIn(core_runs(0)), kCoreNameOf);
INSTANTIATE_TEST_SUITE_P(Cases, CoreAttentionDocuments, testing::ValuesIn(core_runs(2)),
                         kCoreNameOf);

struct Choice {
  std::string name;
  AttentionCase test_case;
  const char *fp64, *fp32; ///< the second with AVX2
};

TEST(CoreAttentionChoice, TakesWhatItCanDo) {
  const std::vector<Choice> choices = {
      {"causal", {}, "flash", "kernel"},
      {"grouped", {.heads = 6, .kv_heads = 2}, "flash", "kernel"},
      {"full", {.mask = AttentionMask::kFull}, "flash", "kernel"},
      {"values", {.value_size = 5}, "blocked", "kernel"},
      {"bias", {.bias = true}, "blocked", "kernel"},
      {"sinks", {.softmax = SoftmaxKind::kOffByOne}, "blocked", "kernel"},
      {"window", {.window = 4}, "blocked", "kernel"},
      {"wide window", {.window = 13}, "flash", "kernel"},
      // Documents inside a sample do not change what runs.
      {"packed window", {.documents = {0, 4, 13, 15, 26}, .window = 12}, "blocked", "kernel"},
      {"prefix", {.mask = AttentionMask::kPrefix}, "blocked", "kernel"},
      {"keys ahead",
       {.pairs = {{.query_size = 5, .key_size = 5, .offset = 1}}, .keys = 5},
       "blocked",
       "kernel"},
      {"keys elsewhere",
       {.mask = AttentionMask::kFull,
        .pairs = {{.query_size = 5, .key_size = 4, .offset = 1}},
        .keys = 5},
       "flash",
       "kernel"},
      {"cap", {.cap = 3}, "blocked", "kernel"},
      {"cap and bias", {.cap = 3, .bias = true}, "blocked", "blocked"},
      {"dropout", {.dropout = 0.1}, "blocked", "kernel"}};
  for (const Choice& choice : choices) {
    const AttentionCase& c = choice.test_case;
    test::Pass pass(c.layout());
    pass.ctx.training = true;
    const auto entry = [&](at::ScalarType dtype) {
      const CoreInputs in = core_inputs_of(c, dtype);
      return std::string(core_attention_entry({in.q, in.k, in.v, in.bias}, c.all_pairs(),
                                              options_of(c), pass.ctx));
    };
    EXPECT_EQ(entry(at::kDouble), choice.fp64) << choice.name;
    if (kernels::attention_supported({.heads = 1, .kv_heads = 1, .head_size = 8})) {
      EXPECT_EQ(entry(at::kFloat), choice.fp32) << choice.name;
    }
  }
}

TEST(CoreAttentionErrors, PairsThatOverlapOrLeaveTheTensorsAreNamed) {
  const AttentionCase c{.bias = true};
  const CoreInputs in = core_inputs_of(c, at::kDouble);
  test::Pass pass(c.layout());
  const auto error = [&](std::vector<AttentionPair> pairs) {
    return test::error_of([&] {
      core_attention({in.q, in.k, in.v, in.bias}, pairs, options_of(c), pass.ctx);
    });
  };
  EXPECT_NE(error({{.query_size = 27}}).find("queries [0, 27) of a pair are not free ones of 26"),
            std::string::npos);
  EXPECT_NE(
      error({{.query_begin = 9, .query_size = 5}, {.query_size = 10}}).find("queries [9, 14)"),
      std::string::npos);
  EXPECT_NE(error({{.key_size = 5}, {.key_begin = 4, .key_size = 2}}).find("keys [4, 6)"),
            std::string::npos);
  EXPECT_NE(error({{.query_size = 2, .key_size = 5, .offset = 70}})
                .find("a bias of span 73 has no column for the distance 74"),
            std::string::npos);
}

/// Attention to two halves of the keys, merged by their log-sum-exp, is attention to all: values
/// and gradients.
TEST(CoreAttentionLse, MergesBlocksOfKeys) {
  const AttentionCase c{.heads = 4, .kv_heads = 2, .batch = 1, .sequence = 20};
  const CoreInputs in = core_inputs_of(c, at::kDouble);
  test::Pass pass(c.layout());
  const auto attend = [&](const std::vector<at::Tensor>& x, int64_t begin, int64_t size) {
    return core_attention(
        {x[0], x[1].narrow(0, begin, size), x[2].narrow(0, begin, size)},
        std::vector<AttentionPair>{{.query_size = 20, .key_size = size, .offset = begin}},
        options_of(c), pass.ctx);
  };
  const auto whole = test::differentiate([&](const auto& x) { return attend(x, 0, 20).out; },
                                         {in.q, in.k, in.v}, in.dout);
  const auto merged = test::differentiate(
      [&](const auto& x) {
        const AttentionOutputs a = attend(x, 0, 7), b = attend(x, 7, 13);
        const at::Tensor lse = at::logaddexp(a.lse, b.lse);
        const auto part = [&](const AttentionOutputs& y) {
          return y.out.view({20, 4, 8}) * (y.lse - lse).exp().unsqueeze(2);
        };
        return (part(a) + part(b)).flatten(1);
      },
      {in.q, in.k, in.v}, in.dout);
  expect_close(merged.y, whole.y, {1e-11, 1e-12});
  for (size_t i = 0; i < 3; ++i) expect_close(merged.grads[i], whole.grads[i], {1e-11, 1e-12});
}

TEST(CoreAttentionDropout, IsAbsentOutsideTraining) {
  const AttentionCase c{.heads = 2, .kv_heads = 2};
  const CoreInputs in = core_inputs_of(c, at::kDouble);
  test::Pass pass(c.layout());
  CoreAttentionOptions options = options_of(c);
  const auto out = [&] {
    return core_attention({in.q, in.k, in.v}, c.all_pairs(), options, pass.ctx).out;
  };
  const at::Tensor plain = out();
  options.dropout = 0.5;
  EXPECT_TRUE(test::same_bits(out(), plain));
  pass.ctx.training = true;
  EXPECT_FALSE(test::same_bits(out(), plain));
}

TEST(CoreAttentionDropout, FollowsTheSampleHoweverTheBatchIsSplit) {
  const AttentionCase c{.heads = 2, .kv_heads = 2, .dropout = 0.4};
  const CoreInputs in = core_inputs_of(c, at::kDouble);
  test::Pass pass(c.layout());
  pass.ctx.training = true;
  const at::Tensor whole =
      core_attention({in.q, in.k, in.v}, c.all_pairs(), options_of(c), pass.ctx).out;
  const auto part = [&](const at::Tensor& x) { return x.narrow(0, c.sequence, c.sequence); };
  test::Pass second(nn::SequenceLayout::dense(1, c.sequence, {71}, at::kCPU));
  second.ctx.training = true;
  expect_close(core_attention({part(in.q), part(in.k), part(in.v)}, second.layout.self_attention(),
                              options_of(c), second.ctx)
                   .out,
               part(whole), {1e-13, 1e-13});
}

} // namespace
} // namespace pentatron::layers
