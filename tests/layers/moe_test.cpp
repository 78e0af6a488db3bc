// A mixture of experts against its definition in LibTorch, alone and on ranks of ep, etp and tp.
#include "pentatron/layers/moe.h"

#include <map>
#include <mutex>

#include <gtest/gtest.h>

#include "pentatron/base/safetensors.h"
#include "pentatron/comm/collectives.h"
#include "pentatron/comm/recorder.h"
#include "pentatron/config/config.h"
#include "pentatron/nn/param_store.h"
#include "pentatron/nn/saved.h"
#include "tests/nn/op_fixture.h"
#include "tests/nn/saved_fixture.h"
#include "tests/support/ranks.h"

namespace pentatron::layers {
namespace {

using test::expect_close;
using test::randn;

constexpr int64_t kMoeTokens = 12, kMoeHidden = 10, kMoeFfn = 8, kMoeExperts = 4;
constexpr test::Tolerance kMoeExact{1e-12, 1e-12};

struct MoeCase {
  const char* name;
  MoeOptions options;
};
std::ostream& operator<<(std::ostream& out, const MoeCase& c) {
  return out << c.name;
}

MoeOptions plain() {
  MoeOptions o;
  o.expert = {.hidden = kMoeHidden,
              .ffn = kMoeFfn,
              .activation = kernels::Activation::kSilu,
              .gated = true,
              .init_std = 0.3,
              .proj_init_std = 0.3};
  o.router = {.experts = kMoeExperts, .top_k = 2};
  return o;
}

std::vector<MoeCase> moe_cases() {
  std::vector<MoeCase> all = {{"gated", plain()}};
  MoeOptions biased = plain();
  biased.expert.bias = biased.router_bias = true;
  biased.expert.gated = false;
  all.push_back({"biased", biased});
  MoeOptions shared = plain();
  shared.shared = shared.expert;
  shared.shared->ffn = 6;
  shared.shared_gate = true;
  shared.router.score_first = true;
  all.push_back({"shared", shared});
  MoeOptions sigmoid = plain();
  sigmoid.router.score = parallel::RouterScore::kSigmoid;
  sigmoid.router.normalize = true;
  sigmoid.router.scaling = 1.5;
  sigmoid.shared = sigmoid.expert;
  all.push_back({"sigmoid", sigmoid});
  MoeOptions limited = plain(); // GPT-OSS; about half of the values are behind the limit
  limited.expert.bias = limited.router_bias = true;
  limited.expert.activation = kernels::Activation::kQuickGelu;
  limited.expert.gate = {.limit = 0.7, .up_offset = 1};
  all.push_back({"limited", limited});
  MoeOptions latent = plain(); // and all else
  latent.latent = 6;
  latent.expert.bias = latent.router_bias = true;
  latent.shared = latent.expert;
  latent.shared->bias = false;
  latent.shared_gate = true;
  all.push_back({"latent", latent});
  MoeOptions one = plain();
  one.latent = 14; // wider than the layer
  one.router = {.experts = kMoeExperts, .top_k = 1, .score_first = true};
  all.push_back({"wide_latent", one});
  return all;
}

struct BuiltMoe {
  BuiltMoe(const MoeOptions& o, const parallel::TensorParallel& tp = {},
           const parallel::ExpertParallel& experts = {}, at::ScalarType dtype = at::kDouble)
      : moe(nn::Scope(params, dtype, {{"tp", {tp.rank(), tp.size()}}}), o, tp, experts),
        store(params, at::kCPU) {
    params.make_buffers(at::kCPU);
    uint64_t seed = 100;
    for (nn::Param& p : params) {
      at::Tensor value = 0.4 * randn(p.spec().shape, ++seed);
      nn::load_global(p, value.to(dtype));
    }
  }
  nn::ParamList params;
  Moe moe;
  nn::ResidentStore store;
};

at::Tensor act(const at::Tensor& x, const MlpOptions& o) {
  if (!o.gated) return at::silu(x);
  const at::Tensor gate = x.narrow(1, 0, x.size(1) / 2),
                   up = x.narrow(1, x.size(1) / 2, x.size(1) / 2);
  if (o.activation == kernels::Activation::kSilu) return at::silu(gate) * up;
  const at::Tensor low = gate.clamp_max(o.gate.limit);
  return low * at::sigmoid(1.702 * low) *
         (up.clamp(-o.gate.limit, o.gate.limit) + o.gate.up_offset);
}

/// The definition: every expert on every token, and a mask of weights.
at::Tensor define(const at::Tensor& x, const std::map<std::string, at::Tensor>& p,
                  const MoeOptions& o) {
  const auto has = [&](const char* name) { return p.contains(name); };
  at::Tensor logits = x.matmul(p.at("router.weight").t());
  if (has("router.bias")) logits = logits + p.at("router.bias");
  const parallel::Routed routed = parallel::route(logits.detach(), {}, o.router);
  at::Tensor scores = o.router.score == parallel::RouterScore::kSigmoid ? at::sigmoid(logits)
                                                                        : at::softmax(logits, 1);
  scores = scores.gather(1, routed.experts);
  const bool of_selected =
      o.router.score == parallel::RouterScore::kSoftmax && !o.router.score_first;
  if (o.router.normalize || of_selected) scores = scores / scores.sum(1, true);
  const at::Tensor weights =
      at::zeros_like(logits).scatter(1, routed.experts, scores * o.router.scaling);
  at::Tensor read = x;
  if (has("fc1_latent_proj.weight")) read = x.matmul(p.at("fc1_latent_proj.weight").t());
  if (has("fc1_latent_proj.bias")) read = read + p.at("fc1_latent_proj.bias");
  at::Tensor y = at::zeros_like(read);
  for (int64_t e = 0; e < o.router.experts; ++e) {
    at::Tensor up = read.matmul(p.at("experts.fc1.weight")[e].t());
    if (has("experts.fc1.bias")) up = up + p.at("experts.fc1.bias")[e];
    at::Tensor out = act(up, o.expert).matmul(p.at("experts.fc2.weight")[e].t());
    if (has("experts.fc2.bias")) out = out + p.at("experts.fc2.bias")[e];
    y = y + weights.select(1, e).unsqueeze(1) * out;
  }
  if (has("fc2_latent_proj.weight")) y = y.matmul(p.at("fc2_latent_proj.weight").t());
  if (has("fc2_latent_proj.bias")) y = y + p.at("fc2_latent_proj.bias");
  if (has("shared.fc1.weight")) {
    at::Tensor shared = act(x.matmul(p.at("shared.fc1.weight").t()), o.expert)
                            .matmul(p.at("shared.fc2.weight").t());
    if (has("shared_gate.weight"))
      shared = shared * at::sigmoid(x.matmul(p.at("shared_gate.weight").t()));
    y = y + shared;
  }
  return y;
}

class MoeLayer : public testing::TestWithParam<MoeCase> {};

TEST_P(MoeLayer, IsItsDefinitionWithAllGradients) {
  const at::Tensor x = randn({kMoeTokens, kMoeHidden}, 1), dy = randn({kMoeTokens, kMoeHidden}, 2);
  BuiltMoe layer(GetParam().options);
  std::map<std::string, at::Tensor> values;
  for (const nn::Param& p : layer.params) values[p.name()] = p.value().clone().requires_grad_(true);
  const at::Tensor x_leaf = x.clone().requires_grad_(true);
  const at::Tensor y = define(x_leaf, values, GetParam().options);
  y.backward(dy);
  test::Pass pass(kMoeTokens);
  const auto r = test::differentiate(
      [&](const auto& in) { return layer.moe.forward(in[0], pass.ctx); }, {x}, dy);
  expect_close(r.y, y, kMoeExact);
  expect_close(r.grads[0], x_leaf.grad(), kMoeExact);
  for (const nn::Param& p : layer.params) {
    SCOPED_TRACE(p.name());
    expect_close(p.main_grad(), values.at(p.name()).grad(), kMoeExact);
    EXPECT_EQ(p.outstanding_uses(), 0);
  }
}

TEST_P(MoeLayer, NarrowTypesAreNearFp64) {
  const at::Tensor x = randn({kMoeTokens, kMoeHidden}, 1), dy = randn({kMoeTokens, kMoeHidden}, 2);
  const auto run = [&](BuiltMoe& layer, at::ScalarType dtype) {
    test::Pass pass(kMoeTokens);
    return test::differentiate([&](const auto& in) { return layer.moe.forward(in[0], pass.ctx); },
                               {x.to(dtype)}, dy.to(dtype));
  };
  BuiltMoe exact(GetParam().options);
  const auto expected = run(exact, at::kDouble);
  for (const auto& [dtype, bound] : {std::pair{at::kFloat, 1e-5}, {at::kBFloat16, 5e-2}}) {
    BuiltMoe layer(GetParam().options, {}, {}, dtype);
    const auto actual = run(layer, dtype);
    EXPECT_EQ(actual.y.scalar_type(), dtype);
    EXPECT_LT(test::relative_error(actual.y, expected.y), bound);
    EXPECT_LT(test::relative_error(actual.grads[0], expected.grads[0]), bound);
    for (const nn::Param& p : layer.params)
      EXPECT_LT(test::relative_error(p.main_grad(), exact.params.find(p.name()).main_grad()),
                2 * bound)
          << p.name();
  }
}

TEST_P(MoeLayer, AFrozenParameterChangesNothingElse) {
  const at::Tensor x = randn({kMoeTokens, kMoeHidden}, 1), dy = randn({kMoeTokens, kMoeHidden}, 2);
  const auto run = [&](BuiltMoe& layer) {
    test::Pass pass(kMoeTokens);
    return test::differentiate([&](const auto& in) { return layer.moe.forward(in[0], pass.ctx); },
                               {x}, dy);
  };
  BuiltMoe trained(GetParam().options);
  const auto expected = run(trained);
  for (const nn::Param& frozen : trained.params) {
    SCOPED_TRACE(frozen.name() + " is frozen");
    BuiltMoe layer(GetParam().options);
    layer.params.find(frozen.name()).trainable = false;
    EXPECT_TRUE(test::same_bits(run(layer).grads[0], expected.grads[0]));
    for (const nn::Param& p : layer.params) {
      EXPECT_EQ(p.outstanding_uses(), 0) << p.name();
      const at::Tensor& grad = trained.params.find(p.name()).main_grad();
      expect_close(p.main_grad(), p.trainable ? grad : at::zeros_like(grad), {0, 0});
    }
  }
}

/// Ranks that are all of tp, which is etp x ep; each has all tokens, or under sequence parallel its
/// own.
TEST_P(MoeLayer, OnRanksIsTheSame) {
  const at::Tensor x = randn({kMoeTokens, kMoeHidden}, 1), dy = randn({kMoeTokens, kMoeHidden}, 2);
  BuiltMoe one(GetParam().options);
  test::Pass pass(kMoeTokens);
  const auto expected = test::differentiate(
      [&](const auto& in) { return one.moe.forward(in[0], pass.ctx); }, {x}, dy);
  for (const auto& [ranks, etp, kind] : {std::tuple{2, 1, parallel::DispatchKind::kAllToAll},
                                         {2, 2, parallel::DispatchKind::kAllToAll},
                                         {4, 2, parallel::DispatchKind::kAllToAll},
                                         {2, 1, parallel::DispatchKind::kAllGather},
                                         {4, 2, parallel::DispatchKind::kAllGather}}) {
    for (const bool sequence : {false, true}) {
      SCOPED_TRACE(fmt::format("{} ranks, etp {}, {}{}", ranks, etp, config::to_string(kind),
                               sequence ? ", sequence" : ""));
      if (GetParam().options.shared && GetParam().options.shared->ffn % ranks != 0) continue;
      std::map<std::string, at::Tensor> grads;
      std::mutex mutex;
      test::run_ranks(ranks, [&, etp = etp, kind = kind](const comm::Group& group) {
        const parallel::TensorParallel tp(group, sequence, false);
        BuiltMoe layer(GetParam().options, tp, {group, etp, {}, kind});
        test::Pass own(kMoeTokens);
        if (sequence) own.layout.cut_outer(group.rank(), group.size());
        auto r =
            test::differentiate([&](const auto& in) { return layer.moe.forward(in[0], own.ctx); },
                                {own.layout.outer(x)}, own.layout.outer(dy));
        for (at::Tensor* t : {&r.y, r.grads.data()})
          if (sequence) *t = comm::all_gather(*t, 0, group);
        expect_close(r.y, expected.y, kMoeExact);
        expect_close(r.grads[0], expected.grads[0], kMoeExact);
        const std::lock_guard lock(mutex);
        for (const nn::Param& p : layer.params) {
          // Addends of axes that the spec is Partial over, and shards; replicas once.
          at::Tensor whole = at::zeros(p.spec().shape, at::kDouble);
          nn::store_global(p, p.main_grad(), whole);
          const auto kind = [&](const char* axis) { return p.spec().placement(axis).kind; };
          const bool replica = p.group == nn::ReductionGroup::kDense &&
                               kind("tp") == nn::Placement::Kind::kReplicate && group.rank() > 0;
          auto [entry, fresh] = grads.try_emplace(p.name(), at::zeros(p.spec().shape, at::kDouble));
          if (!replica) entry->second += whole;
        }
      });
      for (const nn::Param& p : one.params) {
        SCOPED_TRACE(p.name());
        expect_close(grads.at(p.name()), p.main_grad(), kMoeExact);
      }
    }
  }
}

/// The same numbers to the bit, with and without what tensor ranks exchange in shared experts.
TEST_P(MoeLayer, SharedExpertsOnTheWayChangeNoBit) {
  if (!GetParam().options.shared) return;
  const at::Tensor x = randn({kMoeTokens, kMoeHidden}, 1), dy = randn({kMoeTokens, kMoeHidden}, 2);
  for (const auto kind : {parallel::DispatchKind::kAllToAll, parallel::DispatchKind::kAllGather}) {
    for (const bool sequence : {false, true}) {
      test::run_ranks(2, [&](const comm::Group& group) {
        const parallel::TensorParallel tp(group, sequence, false);
        std::vector<at::Tensor> results[2];
        for (const bool overlap : {false, true}) {
          BuiltMoe layer(GetParam().options, tp, {group, 1, {}, kind, overlap}, at::kFloat);
          test::Pass own(kMoeTokens);
          if (sequence) own.layout.cut_outer(group.rank(), group.size());
          const auto r = test::differentiate(
              [&](const auto& in) { return layer.moe.forward(in[0], own.ctx); },
              {own.layout.outer(x).to(at::kFloat)}, own.layout.outer(dy).to(at::kFloat));
          results[overlap] = {r.y, r.grads[0]};
          for (const nn::Param& p : layer.params) results[overlap].push_back(p.main_grad().clone());
        }
        for (size_t i = 0; i < results[0].size(); ++i)
          EXPECT_TRUE(test::same_bits(results[0][i], results[1][i])) << i;
      });
    }
  }
}

/// Sets of parts that a layer with experts has.
std::vector<nn::Parts> parts_of_experts() {
  using nn::Part;
  return {{},
          {Part::kMoeActivation},
          {Part::kSharedExperts},
          {Part::kMlpActivation},
          {Part::kMoeActivation, Part::kSharedExperts, Part::kMlpActivation},
          {Part::kMoe},
          {Part::kMoe, Part::kSharedExperts, Part::kMoeActivation}};
}

/// Routing, exchange and experts, made again on one rank and on several, in the same bits.
TEST_P(MoeLayer, RecomputedPartsChangeNoBit) {
  const at::Tensor x = randn({kMoeTokens, kMoeHidden}, 1), dy = randn({kMoeTokens, kMoeHidden}, 2);
  for (const bool sequence : {false, true}) {
    test::run_ranks(2, [&](const comm::Group& group) {
      const parallel::TensorParallel tp(group, sequence, false);
      std::vector<at::Tensor> plain;
      for (const nn::Parts parts : parts_of_experts()) {
        SCOPED_TRACE(test::names_of(parts));
        BuiltMoe layer(GetParam().options, tp,
                       {group, 1, {}, parallel::DispatchKind::kAllToAll, true});
        test::Pass own(kMoeTokens);
        own.ctx.training = true;
        own.ctx.recomputed = parts;
        if (sequence) own.layout.cut_outer(group.rank(), group.size());
        const auto r =
            test::differentiate([&](const auto& in) { return layer.moe.forward(in[0], own.ctx); },
                                {own.layout.outer(x)}, own.layout.outer(dy));
        std::vector<at::Tensor> results = {r.y, r.grads[0]};
        for (const nn::Param& p : layer.params) {
          EXPECT_EQ(p.outstanding_uses(), 0) << p.name();
          if (p.main_grad().defined()) results.push_back(p.main_grad().clone());
        }
        if (plain.empty()) plain = results;
        ASSERT_EQ(results.size(), plain.size());
        for (size_t i = 0; i < results.size(); ++i)
          EXPECT_TRUE(test::same_bits(results[i], plain[i])) << i;
      }
    });
  }
}

TEST_P(MoeLayer, CostCountsTheBytesThatOperatorsKeep) {
  for (const nn::Parts parts : parts_of_experts())
    for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
      SCOPED_TRACE(test::names_of(parts));
      BuiltMoe layer(GetParam().options, {}, {}, dtype);
      test::Pass pass(kMoeTokens);
      pass.ctx.recomputed = parts;
      nn::SavedTensors account;
      const at::Tensor x = randn({kMoeTokens, kMoeHidden}, 1).to(dtype).requires_grad_(true);
      const at::Tensor y = [&] {
        const nn::SavedTensorsScope accounted(account);
        return layer.moe.forward(x, pass.ctx);
      }();
      const nn::LayerShape shape{.tokens = kMoeTokens,
                                 .element_bytes = static_cast<int64_t>(at::elementSize(dtype)),
                                 .acc_bytes = dtype == at::kDouble ? 8 : 4};
      const nn::Cost cost = Moe::cost(GetParam().options, shape);
      EXPECT_EQ(account.bytes(), cost.saved_bytes - cost.freed_bytes(parts)) << dtype;
    }
}

/// Rows of zeros that fill experts up to their capacity are kept like others, and are no work of
/// the model.
TEST(MoePadding, CountsAsBytesAndNotAsFlops) {
  MoeOptions padded = plain();
  padded.capacity = {.factor = 2, .pad = true};
  BuiltMoe layer(padded, {}, {}, at::kFloat);
  test::Pass pass(kMoeTokens);
  pass.ctx.training = true;
  nn::SavedTensors account;
  const at::Tensor x = randn({kMoeTokens, kMoeHidden}, 1).to(at::kFloat).requires_grad_(true);
  const at::Tensor y = [&] {
    const nn::SavedTensorsScope accounted(account);
    return layer.moe.forward(x, pass.ctx);
  }();
  const nn::LayerShape shape{.tokens = kMoeTokens, .element_bytes = 4, .acc_bytes = 4};
  const nn::Cost cost = Moe::cost(padded, shape), without = Moe::cost(plain(), shape);
  EXPECT_EQ(account.bytes(), cost.saved_bytes);
  EXPECT_GT(cost.saved_bytes, without.saved_bytes);
  EXPECT_EQ(cost.forward_gemm_flops, without.forward_gemm_flops);
}

/// Tensor ranks that are all ranks of experts, with equal loads.
struct OnRanks {
  int ranks, etp;
  parallel::DispatchKind kind;
  bool sequence;
};
std::vector<OnRanks> on_ranks() {
  std::vector<OnRanks> all;
  for (const auto kind : {parallel::DispatchKind::kAllToAll, parallel::DispatchKind::kAllGather})
    for (const bool sequence : {false, true})
      for (const auto& [ranks, etp] : {std::pair{2, 1}, {2, 2}, {4, 1}, {4, 2}, {4, 4}})
        all.push_back({ranks, etp, kind, sequence});
  return all;
}

/// What operators keep, and what leaves for other ranks in forward and in backward.
TEST_P(MoeLayer, CostOnRanksCountsTheBytesThatAreKeptAndSent) {
  constexpr int64_t kEven = 16; // tokens: as many for each expert on each rank
  MoeOptions o = GetParam().options;
  o.forced_balance = true;
  for (const OnRanks& c : on_ranks())
    for (const at::ScalarType dtype : {at::kDouble, at::kBFloat16}) {
      SCOPED_TRACE(fmt::format("{} ranks, etp {}, {}{}", c.ranks, c.etp, config::to_string(c.kind),
                               c.sequence ? ", sequence" : ""));
      if (o.shared && o.shared->ffn % c.ranks != 0) continue;
      test::run_ranks(c.ranks, [&](const comm::Group& plain) {
        const auto recorder = std::make_shared<comm::Recorder>();
        const comm::Group group = comm::recorded(plain, recorder);
        // Shared experts communicate as an Mlp does, which is another count.
        const parallel::TensorParallel tp(o.shared ? plain : group, c.sequence, false);
        BuiltMoe layer(o, tp, {group, c.etp, {}, c.kind}, dtype);
        test::Pass pass(kEven);
        pass.ctx.training = true;
        if (c.sequence) pass.layout.cut_outer(group.rank(), group.size());
        recorder->enable(true);
        nn::SavedTensors account;
        const at::Tensor x =
            pass.layout.outer(randn({kEven, kMoeHidden}, 1)).to(dtype).clone().requires_grad_(true);
        const at::Tensor y = [&] {
          const nn::SavedTensorsScope accounted(account);
          return layer.moe.forward(x, pass.ctx);
        }();
        const auto sent = [&](double& bytes, int& count) {
          for (const comm::RecordedOperation& operation : recorder->take()) {
            bytes += static_cast<double>(operation.sent_bytes);
            ++count;
          }
        };
        nn::ExchangeCost actual;
        sent(actual.forward_bytes, actual.forward_count);
        const int64_t kept = account.bytes();
        y.backward(at::ones_like(y));
        sent(actual.backward_bytes, actual.backward_count);

        nn::LayerShape shape{.tokens = kEven,
                             .element_bytes = static_cast<int64_t>(at::elementSize(dtype)),
                             .acc_bytes = dtype == at::kDouble ? 8 : 4,
                             .tp = c.ranks,
                             .sequence_parallel = c.sequence,
                             .ep = c.ranks / c.etp,
                             .etp = c.etp,
                             .gathers_tokens = c.kind == parallel::DispatchKind::kAllGather};
        const nn::Cost cost = Moe::cost(o, shape);
        nn::ExchangeCost expected = cost.expert_exchange;
        if (o.shared && !c.sequence) { // what tensor ranks exchange was not recorded
          shape.sequence_parallel = true;
          expected = Moe::cost(o, shape).expert_exchange;
        }
        EXPECT_EQ(actual.forward_bytes, expected.forward_bytes);
        EXPECT_EQ(actual.backward_bytes, expected.backward_bytes);
        EXPECT_EQ(actual.forward_count, expected.forward_count);
        EXPECT_EQ(actual.backward_count, expected.backward_count);
        if (!o.shared || !c.sequence) {
          EXPECT_EQ(kept, cost.saved_bytes);
        }
      });
    }
}

/// Groups of experts, a selection bias, and shared experts of the whole width, as transformers
/// computes them.
TEST(LatentExperts, AreThoseOfTransformers) {
  const SafetensorsFile file(std::string(PENTATRON_TEST_DATA) +
                             "/hf_tiny/latent_experts.safetensors");
  const auto golden = [&](const std::string& name) {
    const SafeTensor& t = file.at(name);
    return at::from_blob(const_cast<std::byte*>(t.data.data()), t.shape, at::kDouble).clone();
  };
  MoeOptions o;
  o.expert = {.hidden = 12, .ffn = 10, .activation = kernels::Activation::kSquaredRelu};
  o.latent = 8;
  o.router = {.experts = 6,
              .top_k = 3,
              .score = parallel::RouterScore::kSigmoid,
              .normalize = true,
              .scaling = 1.5,
              .groups = 3,
              .group_top_k = 2,
              .group_score_top_k = 2};
  o.expert_bias = true;
  o.shared = o.expert;
  o.shared->ffn = 14;
  const at::Tensor x = golden("x");
  test::run_ranks(2, [&](const comm::Group& group) {
    const parallel::TensorParallel alone;
    BuiltMoe layer(o, alone, {group, 1});
    for (nn::Param& p : layer.params) nn::load_global(p, golden(p.name()));
    for (nn::Param& b : layer.params.buffers()) b.value().copy_(golden(b.name()));
    test::Pass pass(x.size(0));
    const auto r = test::differentiate(
        [&](const auto& in) { return layer.moe.forward(in[0], pass.ctx); }, {x}, golden("dy"));
    expect_close(r.y, golden("y"), kMoeExact);
    expect_close(r.grads[0], golden("grad.x"), kMoeExact);
    for (const nn::Param& p : layer.params) {
      SCOPED_TRACE(p.name());
      const at::Tensor whole = golden("grad." + p.name());
      const int64_t part = whole.size(0) / group.size();
      // Both ranks have all tokens, so experts have every token twice.
      expect_close(p.main_grad(),
                   p.group == nn::ReductionGroup::kExpert
                       ? 2 * whole.narrow(0, group.rank() * part, part)
                       : whole,
                   kMoeExact);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Options, MoeLayer, testing::ValuesIn(moe_cases()),
                         [](const auto& info) { return info.param.name; });

} // namespace
} // namespace pentatron::layers
