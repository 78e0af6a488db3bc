// Attention over context-parallel ranks, against the attention of one rank to all tokens.
#include "pentatron/layers/context_attention.h"

#include "pentatron/nn/saved.h"
#include "pentatron/parallel/context/zigzag.h"
#include "tests/layers/core_attention_cases.h"
#include "tests/nn/op_fixture.h"
#include "tests/support/ranks.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <mutex>

namespace pentatron::layers {
namespace {

using parallel::ContextWay;
using test::expect_close;
using test::randn;
using test_cases::AttentionCase;

struct Inputs {
  at::Tensor q, k, v, sinks, dout;
};
Inputs inputs_of(const AttentionCase& c, at::ScalarType dtype) {
  const int64_t d = c.head_size, e = c.values(), g = c.kv_heads;
  const at::Tensor q = randn({c.tokens(), c.heads, d}, 1).to(dtype),
                   kv = randn({c.tokens(), g * (d + e)}, 7).to(dtype); // strided tokens
  return {q, kv.narrow(1, 0, g * d).unflatten(1, {g, d}),
          kv.narrow(1, g * d, g * e).unflatten(1, {g, e}), randn({c.heads}, 2).to(dtype),
          randn({c.tokens(), c.heads * e}, 3).to(dtype)};
}

struct Results {
  at::Tensor out, dq, dk, dv, dsinks;
};

/// On the tokens of a layout; with `way` those of a rank.
Results attend(const AttentionCase& c, const nn::SequenceLayout& layout, const Inputs& in,
               const ContextWay* way) {
  test::Params params;
  test::Pass pass(layout);
  pass.ctx.seed = 21;
  pass.ctx.training = true;
  CoreAttentionOptions options{.mask = c.mask,
                               .scale = c.scale,
                               .window = c.window,
                               .cap = c.cap,
                               .softmax = c.softmax,
                               .dropout = c.dropout,
                               .site = 5,
                               .head_offset = 3};
  if (c.softmax == SoftmaxKind::kLearnable) options.sinks = &params.add("sinks", in.sinks);
  const auto own = [&](const at::Tensor& x) {
    return parallel::own_tokens(x, layout).detach().requires_grad_(true);
  };
  const AttentionOperands x{own(in.q), own(in.k), own(in.v)};
  const at::Tensor out = way != nullptr
                             ? context_attention(x, options, *way, pass.ctx)
                             : core_attention(x, layout.self_attention(), options, pass.ctx).out;
  out.backward(parallel::own_tokens(in.dout, layout).clone());
  Results r{out.detach(), x.q.grad(), x.k.grad(), x.v.grad(), {}};
  if (options.sinks != nullptr) {
    r.dsinks = options.sinks->main_grad();
    EXPECT_EQ(options.sinks->outstanding_uses(), 0);
  }
  return r;
}

struct Kind {
  std::string name;
  int ranks;
  bool heads; ///< among all ranks, or of 4 ranks among 2
  bool ring;
};
ContextWay way_of(const Kind& kind, const comm::Group& cp) {
  if (!kind.heads) return {.heads = {}, .blocks = cp, .ring = kind.ring};
  if (kind.ranks < 4) return {.heads = cp, .blocks = {}, .ring = false};
  const int rank = cp.rank();
  return {.heads = cp.split(rank / 2, rank, "inner"),
          .blocks = cp.split(rank % 2, rank, "outer"),
          .ring = kind.ring};
}

struct Run {
  AttentionCase test_case;
  Kind kind;
};
void PrintTo(const Run& run, std::ostream* os) {
  *os << run.test_case.name << "_" << run.kind.name;
}

/// Of cases that `takes` takes.
std::vector<Run> runs(bool (*takes)(const AttentionCase&)) {
  const std::vector<Kind> kinds = {
      {"ring_of_2", 2, false, true},           {"ring_of_3", 3, false, true},
      {"ring_of_5", 5, false, true},           {"gathered_by_2", 2, false, false},
      {"gathered_by_3", 3, false, false},      {"heads_of_2", 2, true, false},
      {"heads_of_2_ring_of_2", 4, true, true}, {"heads_of_2_gathered_by_2", 4, true, false}};
  std::vector<Run> all;
  for (const AttentionCase& c : test_cases::kCases) {
    if (c.bias || c.dlse || !c.pairs.empty() || c.mask == AttentionMask::kPrefix || !takes(c))
      continue;
    for (const Kind& kind : kinds) {
      const bool heads_divide = c.heads % 2 == 0 && c.kv_heads % 2 == 0;
      if (c.sequence < 2 * kind.ranks || (kind.heads && !heads_divide)) continue;
      all.push_back({c, kind});
    }
  }
  return all;
}

bool any(const AttentionCase&) {
  return true;
}
bool two_samples(const AttentionCase& c) {
  return c.documents.empty() && c.batch == 2;
}

class ContextAttention : public testing::TestWithParam<Run> {
 protected:
  /// Calls check(name, what the rank has, its part of `expected`), for outputs and gradients.
  template <class Check>
  void compare(at::ScalarType dtype, const nn::SequenceLayout& whole, const Results& expected,
               const Check& check) const {
    const auto& [c, kind] = GetParam();
    const Inputs in = inputs_of(c, dtype);
    at::Tensor dsinks = at::zeros({c.heads}, nn::acc_dtype(dtype));
    std::mutex mutex;
    test::run_ranks(kind.ranks, [&](const comm::Group& cp) {
      const nn::SequenceLayout own = parallel::cut_samples(whole, cp.rank(), cp.size());
      const ContextWay way = way_of(kind, cp);
      const Results r = attend(c, own, in, &way);
      const std::lock_guard lock(mutex);
      for (const auto& [name, actual, all] : {std::tuple{"out", r.out, expected.out},
                                              {"dq", r.dq, expected.dq},
                                              {"dk", r.dk, expected.dk},
                                              {"dv", r.dv, expected.dv}}) {
        SCOPED_TRACE(fmt::format("{} of rank {}", name, cp.rank()));
        check(actual, parallel::own_tokens(all, own));
      }
      if (r.dsinks.defined()) dsinks += r.dsinks;
    });
    if (c.softmax == SoftmaxKind::kLearnable) check(dsinks, expected.dsinks);
  }
};

class PaddedContextAttention : public ContextAttention {};

TEST_P(ContextAttention, IsThatOfOneRank) {
  const AttentionCase& c = GetParam().test_case;
  const nn::SequenceLayout whole = c.layout();
  compare(at::kDouble, whole, attend(c, whole, inputs_of(c, at::kDouble), nullptr),
          [](const at::Tensor& actual, const at::Tensor& expected) {
            expect_close(actual, expected, {1e-11, 1e-12});
          });
}

TEST_P(ContextAttention, NarrowTypesAreNearFp64) {
  const AttentionCase& c = GetParam().test_case;
  const nn::SequenceLayout whole = c.layout();
  for (const auto& [dtype, bound] : {std::pair{at::kFloat, 4e-6}, {at::kBFloat16, 2.5e-2}}) {
    Inputs wide = inputs_of(c, dtype);
    for (at::Tensor* x : {&wide.q, &wide.k, &wide.v, &wide.sinks, &wide.dout})
      *x = x->to(at::kDouble);
    compare(dtype, whole, attend(c, whole, wide, nullptr),
            [&, bound = bound](const at::Tensor& actual, const at::Tensor& expected) {
              const double size = expected.norm().item<double>();
              EXPECT_LE((actual.to(at::kDouble) - expected).norm().item<double>(),
                        bound * (size + 1));
            });
  }
}

/// Padding in front, behind, and whole chunks of it.
TEST_P(PaddedContextAttention, PaddingIsSeenByNoQuery) {
  const AttentionCase& c = GetParam().test_case;
  nn::SequenceLayout whole = c.layout();
  whole.real = {{0, 4}, {5, 13}};
  compare(at::kDouble, whole, attend(c, whole, inputs_of(c, at::kDouble), nullptr),
          [](const at::Tensor& actual, const at::Tensor& expected) {
            expect_close(actual, expected, {1e-11, 1e-12});
          });
}

const auto kNameOf = [](const auto& info) { return testing::PrintToString(info.param); };
INSTANTIATE_TEST_SUITE_P(Cases, ContextAttention, testing::ValuesIn(runs(any)), kNameOf);
INSTANTIATE_TEST_SUITE_P(Cases, PaddedContextAttention, testing::ValuesIn(runs(two_samples)),
                         kNameOf);

TEST(ContextAttentionCost, KeepsWhatOneRankKeepsOfItsTokens) {
  const AttentionCase c{.name = "", .kv_heads = 2, .batch = 1, .sequence = 16, .value_size = 5};
  const int64_t own = c.sequence / 4, d = c.head_size, e = c.values();
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    for (const Kind& kind : {Kind{"ring", 4, false, true}, Kind{"gathered", 4, false, false},
                             Kind{"heads and ring", 4, true, true}}) {
      test::run_ranks(kind.ranks, [&](const comm::Group& cp) {
        const Inputs in = inputs_of(c, dtype);
        const nn::SequenceLayout layout = parallel::cut_samples(c.layout(), cp.rank(), cp.size());
        test::Pass pass(layout);
        const auto leaf = [&](const at::Tensor& x) {
          return parallel::own_tokens(x, layout).requires_grad_(true);
        };
        nn::SavedTensors account;
        const AttentionOperands x{leaf(in.q), leaf(in.k), leaf(in.v)};
        const at::Tensor y = [&] {
          const nn::SavedTensorsScope accounted(account);
          return context_attention(x, {}, way_of(kind, cp), pass.ctx);
        }();
        const auto element = static_cast<int64_t>(at::elementSize(dtype)),
                   acc = static_cast<int64_t>(at::elementSize(nn::acc_dtype(dtype)));
        EXPECT_EQ(account.bytes(),
                  element * own * (c.heads * (d + e) + c.kv_heads * (d + e)) + acc * own * c.heads)
            << kind.name << " " << dtype;
      });
    }
  }
}

TEST(ContextAttentionErrors, HeadsThatDoNotDivideAreNamed) {
  const AttentionCase c{.name = "", .heads = 4, .kv_heads = 1};
  const std::string message = test::error_of([&] {
    test::run_ranks(2, [&](const comm::Group& cp) {
      const ContextWay way{.heads = cp, .blocks = {}, .ring = false};
      attend(c, parallel::cut_samples(c.layout(), cp.rank(), 2), inputs_of(c, at::kDouble), &way);
    });
  });
  EXPECT_NE(message.find("1 key heads cannot be dealt out"), std::string::npos) << message;
}

} // namespace
} // namespace pentatron::layers
