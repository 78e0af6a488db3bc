// Operators keep what is in their slots and nothing else; hooks may take it away until backward.
#include "pentatron/nn/saved.h"

#include "pentatron/nn/ops/ops.h"
#include "pentatron/nn/record.h"
#include "pentatron/nn/segment.h"
#include "tests/nn/chain.h"
#include "tests/nn/op_fixture.h"
#include "tests/nn/saved_fixture.h"

#include <gtest/gtest.h>

namespace pentatron::nn {
namespace {

using kernels::Activation;
using test::held_bytes;
using test::Params;
using test::Pass;
using test::randn;

constexpr int64_t kSavedRows = 7, kSavedWidth = 6;

struct OpOutcome {
  at::Tensor y;
  std::vector<at::Tensor> grads;
};

struct OperatorCase {
  const char* name;
  std::function<at::Tensor(const std::vector<at::Tensor>& in, Param& matrix, Param& vector,
                           const ForwardContext& ctx)>
      run;
};
void PrintTo(const OperatorCase& c, std::ostream* os) {
  *os << c.name;
}

class KeptTensors : public testing::TestWithParam<OperatorCase> {
 protected:
  /// Forward and backward; `check` looks at what is alive between them.
  OpOutcome run(const std::shared_ptr<SavedHooks>& hooks,
                const std::function<void(int64_t alive, const SavedTensors&,
                                         const std::vector<at::Tensor>& given)>& check) {
    install_counting_allocator();
    Params params;
    Param& matrix = params.add("matrix", randn({kSavedWidth, kSavedWidth}, 1));
    Param& vector = params.add("vector", randn({kSavedWidth}, 2));
    Pass pass(kSavedRows);
    pass.ctx.training = true;
    const std::vector<at::Tensor> leaves = {
        randn({kSavedRows, kSavedWidth}, 3).requires_grad_(true),
        randn({kSavedRows, kSavedWidth}, 4).requires_grad_(true)};
    const at::Tensor dy = randn({kSavedRows, kSavedWidth}, 5);
    OpOutcome out;
    {
      const MemoryScope memory(MemoryCategory::kActivations);
      const int64_t before = held_bytes();
      SavedTensors account;
      at::Tensor y;
      {
        const SavedTensorsScope scope(account);
        const SavedHooksScope installed(hooks);
        y = GetParam().run(leaves, matrix, vector, pass.ctx);
      }
      const auto own = static_cast<int64_t>(y.storage().nbytes());
      check(held_bytes() - before - own, account,
            {leaves[0], leaves[1], pass.layout.positions, pass.layout.row_ids, y});
      out.y = y.detach().clone();
      y.backward(dy.narrow(1, 0, y.size(1)).clone());
      EXPECT_TRUE(account.list().empty()) << "nothing is kept after backward";
    }
    for (const at::Tensor& leaf : leaves) out.grads.push_back(leaf.grad());
    out.grads.push_back(matrix.main_grad());
    out.grads.push_back(vector.main_grad());
    return out;
  }
};

TEST_P(KeptTensors, AreThoseOfTheSlots) {
  const OpOutcome plain =
      run(nullptr, [](int64_t alive, const SavedTensors& account, const auto& given) {
        EXPECT_EQ(alive, account.bytes(given));
      });
  const auto offload = std::make_shared<test::Offload>();
  const OpOutcome offloaded =
      run(offload, [](int64_t alive, const SavedTensors& account, const auto&) {
        EXPECT_EQ(alive, 0) << "something is kept beside the slots";
        EXPECT_TRUE(account.list().empty());
      });
  EXPECT_TRUE(test::same_bits(offloaded.y, plain.y));
  for (size_t i = 0; i < plain.grads.size(); ++i) {
    ASSERT_EQ(offloaded.grads[i].defined(), plain.grads[i].defined()) << i;
    if (!plain.grads[i].defined()) continue;
    EXPECT_TRUE(test::same_bits(offloaded.grads[i], plain.grads[i])) << i;
  }
}

const NormOptions kRms{.kind = kernels::NormKind::kRmsNorm};
const NormOptions kLayer{.kind = kernels::NormKind::kLayerNorm};

INSTANTIATE_TEST_SUITE_P(
    Operators, KeptTensors,
    testing::Values(
        OperatorCase{"linear", [](const auto& in, Param& w, Param& b,
                                  const ForwardContext& ctx) { return linear(in[0], w, &b, ctx); }},
        OperatorCase{"add_bias", [](const auto& in, Param&, Param& b,
                                    const ForwardContext& ctx) { return add_bias(in[0], b, ctx); }},
        OperatorCase{"norm",
                     [](const auto& in, Param&, Param& w, const ForwardContext& ctx) {
                       return norm(in[0], w, nullptr, kRms, ctx);
                     }},
        OperatorCase{"norm_of_a_view",
                     [](const auto& in, Param&, Param& w, const ForwardContext& ctx) {
                       return norm(in[0].t().contiguous().t(), w, &w, kLayer, ctx);
                     }},
        OperatorCase{"add_norm",
                     [](const auto& in, Param&, Param& w, const ForwardContext& ctx) {
                       auto [sum, y] = add_norm(in[0], in[1], w, &w, kLayer, ctx);
                       return add_bias(y, w, ctx);
                     }},
        OperatorCase{"activation",
                     [](const auto& in, Param& w, Param&, const ForwardContext& ctx) {
                       return activation(linear(in[0], w, nullptr, ctx), Activation::kGelu, false);
                     }},
        OperatorCase{"gated_activation",
                     [](const auto& in, Param& w, Param&, const ForwardContext& ctx) {
                       return activation(linear(in[0], w, nullptr, ctx), Activation::kSilu, true);
                     }},
        OperatorCase{"tanh", [](const auto& in, Param&, Param&,
                                const ForwardContext&) { return nn::tanh(in[0]); }},
        OperatorCase{"dropout",
                     [](const auto& in, Param&, Param&, const ForwardContext& ctx) {
                       return dropout(in[0], {.p = 0.3, .site = 2}, ctx);
                     }},
        OperatorCase{"embedding",
                     [](const auto&, Param& table, Param&, const ForwardContext& ctx) {
                       return embedding(at::arange(kSavedRows, at::kLong).remainder(3), table,
                                        nullptr, 0, ctx);
                     }}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(SavedTensors, ListsOperatorsInOrderAndAStorageOnce) {
  Params params;
  Param& w = params.add("w", randn({kSavedWidth, kSavedWidth}, 1));
  Param& scale = params.add("scale", randn({kSavedWidth}, 2));
  Pass pass(kSavedRows);
  const at::Tensor x = randn({kSavedRows, kSavedWidth}, 3).requires_grad_(true);
  SavedTensors account;
  at::Tensor y;
  {
    const SavedTensorsScope scope(account);
    const at::Tensor h = norm(x, scale, nullptr, kRms, pass.ctx);
    y = linear(h, w, nullptr, pass.ctx) + linear(h, w, nullptr, pass.ctx);
  }
  norm(x, scale, nullptr, kRms, pass.ctx); // outside of the scope
  const auto names = [&](const std::vector<at::Tensor>& given) {
    std::string all;
    for (const auto& [name, bytes] : account.list(given))
      all += name + " " + std::to_string(bytes) + "; ";
    return all;
  };
  constexpr int64_t kMatrix = kSavedRows * kSavedWidth * 8;
  EXPECT_EQ(names({}), "norm " + std::to_string(kMatrix + kSavedRows * 8) + "; linear " +
                           std::to_string(kMatrix) + "; linear 0; ");
  EXPECT_EQ(account.bytes({x}), kMatrix + kSavedRows * 8);
  y.sum().backward();
  EXPECT_EQ(names({}), "");
}

/// Operators that a test records itself.
at::Tensor doubled(const at::Tensor& x, std::vector<at::Tensor> saved, BackwardFn backward) {
  at::Tensor y;
  {
    const NoAutograd guard;
    y = x.detach() * 2;
  }
  record("twice", {x}, {y}, std::move(saved), std::move(backward));
  return y;
}

TEST(Slots, MayHoldOutputsInputsAndNothing) {
  const at::Tensor x = randn({3}, 1).requires_grad_(true);
  at::Tensor y;
  {
    const NoAutograd guard;
    y = x.detach() * 2;
  }
  const std::weak_ptr<torch::autograd::Node> node = [&] {
    record("twice", {x}, {y}, {y, x, at::Tensor()}, [&](auto&&, Saved& saved) {
      EXPECT_EQ(saved.size(), 3u);
      EXPECT_FALSE(saved[0].requires_grad() || saved[1].requires_grad());
      EXPECT_FALSE(saved[2].defined());
      EXPECT_TRUE(saved.take(1).is_alias_of(x));
      EXPECT_FALSE(saved[1].defined()) << "it was taken";
      return std::vector<at::Tensor>{saved[0] * 3};
    });
    return std::weak_ptr(y.grad_fn());
  }();
  y.backward(at::ones({3}, at::kDouble));
  EXPECT_TRUE(at::equal(x.grad(), y.detach() * 3));
  y = at::Tensor();
  EXPECT_TRUE(node.expired()) << "an operator that keeps its output does not keep itself";
}

TEST(Slots, AreLoadedOnceAndOnlyIfAskedFor) {
  const auto offload = std::make_shared<test::Offload>();
  const at::Tensor x = randn({3}, 1).requires_grad_(true);
  at::Tensor y;
  {
    const SavedHooksScope installed(offload);
    y = doubled(x, {x, x + 1}, [](auto&& grads, Saved& saved) {
      return std::vector<at::Tensor>{grads[0] * saved[0] * saved[0]};
    });
  }
  EXPECT_EQ(offload->saved, 2);
  y.backward(at::ones({3}, at::kDouble));
  EXPECT_EQ(offload->loaded, 1);
  EXPECT_TRUE(at::equal(x.grad(), (x * x).detach()));
  const at::Tensor z = doubled(x, {x}, [](auto&& grads, Saved&) { return std::move(grads); });
  EXPECT_EQ(offload->saved, 2) << "the hooks are gone";
}

/// x + tanh(x W^T)
class KeepingSegment final : public Segment {
 public:
  explicit KeepingSegment(Param& weight) : weight_(&weight) {}
  std::string name() const override { return "keeping"; }
  bool recomputable() const override { return true; }
  Output forward(const std::vector<at::Tensor>& taken, const ForwardContext& ctx) const override {
    return {.flows = {taken[0] + nn::tanh(linear(taken[0], *weight_, nullptr, ctx))}, .loss = {}};
  }

 private:
  Param* weight_;
};

TEST(SavedTensors, OfATapeAreInputsAndWhatOperatorsKeep) {
  constexpr int64_t kBytes = kSavedRows * kSavedWidth * 8;
  for (const bool recompute : {false, true}) {
    Params params;
    Param& w = params.add("w", randn({kSavedWidth, kSavedWidth}, 1));
    std::vector<std::unique_ptr<Segment>> segments;
    for (int i = 0; i < 2; ++i) segments.push_back(std::make_unique<KeepingSegment>(w));
    const Chunk chunk = test::chain(std::move(segments), {.recompute = {.layers = recompute}},
                                    /*takes=*/true, /*gives=*/true);
    struct Resident final : ParamStore {
      void acquire(int64_t, nn::Pass) override {}
      void release(int64_t, nn::Pass) override {}
    } store;
    Pass pass(kSavedRows);
    Tape tape;
    chunk.forward({randn({kSavedRows, kSavedWidth}, 2)}, pass.ctx, store, &tape);
    std::string list;
    for (const auto& [name, bytes] : tape.saved().list())
      list += name + " " + std::to_string(bytes / kBytes) + "; ";
    EXPECT_EQ(list, recompute ? "input 1; input 1; "
                              : "input 1; linear 0; tanh 1; input 1; linear 0; tanh 1; ");
    chunk.backward({randn({kSavedRows, kSavedWidth}, 3)}, pass.ctx, store, tape);
    EXPECT_EQ(tape.saved().bytes(), 0);
  }
}

TEST(WgradQueue, CountsWhatItsTasksHoldOnce) {
  Params params;
  Param& w = params.add("w", randn({kSavedWidth, kSavedWidth}, 1));
  Pass pass(kSavedRows, /*deferred=*/true);
  const at::Tensor x = randn({kSavedRows, kSavedWidth}, 2).requires_grad_(true);
  at::Tensor y = linear(x, w, nullptr, pass.ctx) + linear(x, w, nullptr, pass.ctx);
  y.backward(randn({kSavedRows, kSavedWidth}, 3));
  EXPECT_EQ(pass.wgrad.size(), 2u);
  EXPECT_EQ(pass.wgrad.bytes(), 2 * kSavedRows * kSavedWidth * 8) << "one input, one gradient";
  pass.wgrad.drain();
  EXPECT_EQ(pass.wgrad.bytes(), 0);
}

} // namespace
} // namespace pentatron::nn
