// What a whole layer keeps can be taken away and given back, or made again, on one rank and on two.
#include "pentatron/nn/recompute.h"
#include "tests/layers/layer_cases.h"

#include "pentatron/layers/sample_head.h"

namespace pentatron::layers {
namespace {

enum class Means : uint8_t { kKept, kOffloaded, kRecomputed, kPartsRecomputed };

struct LayerRun {
  at::Tensor y;
  std::vector<at::Tensor> grads;
  int64_t kept = 0; ///< bytes between forward and backward
};

LayerRun run_layer(LayerCase c, const parallel::TensorParallel& tp, Means means,
                   at::ScalarType dtype, nn::Parts parts = {}) {
  c.options.hidden_dropout = c.options.attention.dropout = c.options.mlp.dropout = 0.2;
  c.options.dropout_site = 1;
  c.options.mlp.dropout_site = 3;
  if (c.options.cross) {
    c.options.cross->dropout = 0.2;
    c.options.cross->dropout_site = 4;
    c.options.cross_dropout_site = 5;
  }
  Layer model(c, tp, dtype);
  test::Pass pass(layout_of(c));
  pass.ctx.training = true;
  pass.ctx.recomputed = parts;
  const auto offload = means == Means::kOffloaded ? std::make_shared<test::Offload>() : nullptr;
  const at::Tensor x = input_x().to(dtype).requires_grad_(true),
                   memory = input_memory(c).to(dtype).requires_grad_(true);
  LayerRun out;
  {
    const nn::MemoryScope scope(nn::MemoryCategory::kActivations);
    comm::barrier(tp.group); // of the run before
    const int64_t before = test::held_bytes();
    at::Tensor y;
    {
      const nn::SavedHooksScope installed(offload);
      const auto forward = [&](const std::vector<at::Tensor>& in, const nn::ForwardContext& ctx) {
        return std::vector<at::Tensor>{model.forward(in, ctx)};
      };
      y = means == Means::kRecomputed ? nn::recompute_module(forward, {x, memory}, pass.ctx)[0]
                                      : forward({x, memory}, pass.ctx)[0];
    }
    comm::barrier(tp.group); // a peer still in a collective holds this rank's part of it
    out.kept = test::held_bytes() - before - static_cast<int64_t>(y.nbytes());
    out.y = y.detach().clone();
    y.backward(input_dy().to(dtype));
  }
  out.grads = {x.grad(), memory.grad()};
  for (const nn::Param& param : model.params) {
    EXPECT_EQ(param.outstanding_uses(), 0) << param.name();
    out.grads.push_back(param.main_grad());
  }
  return out;
}

class SavedLayer : public LayerTest {};

TEST_P(SavedLayer, GradientsAreTheSameHoweverItsTensorsComeBack) {
  nn::install_counting_allocator();
  for (const auto& [ranks, dtype] :
       {std::pair{1, at::kDouble}, {2, at::kDouble}, {1, at::kFloat}, {1, at::kBFloat16}}) {
    SCOPED_TRACE(dtype);
    test::run_ranks(ranks, [&, dtype = dtype](const comm::Group& tp) {
      const LayerRun plain = run_layer(GetParam(), tp, Means::kKept, dtype);
      const auto same = [&](const LayerRun& other) {
        EXPECT_TRUE(test::same_bits(other.y, plain.y));
        ASSERT_EQ(other.grads.size(), plain.grads.size());
        for (size_t i = 0; i < plain.grads.size(); ++i) {
          ASSERT_EQ(other.grads[i].defined(), plain.grads[i].defined()) << i;
          if (!plain.grads[i].defined()) continue;
          EXPECT_TRUE(test::same_bits(other.grads[i], plain.grads[i])) << i;
        }
      };
      for (const Means means : {Means::kOffloaded, Means::kRecomputed}) {
        SCOPED_TRACE(static_cast<int>(means));
        const LayerRun other = run_layer(GetParam(), tp, means, dtype);
        EXPECT_EQ(other.kept, 0) << "something is kept outside of slots";
        same(other);
      }
      for (const nn::Parts parts : some_parts()) {
        SCOPED_TRACE(test::names_of(parts));
        const LayerRun other = run_layer(GetParam(), tp, Means::kPartsRecomputed, dtype, parts);
        EXPECT_LE(other.kept, plain.kept);
        same(other);
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Families, SavedLayer, testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.name; });

/// The operators of heads of whole samples.
TEST(SampleHeads, KeepNothingOutsideTheirSlots) {
  nn::install_counting_allocator();
  for (const bool offloaded : {false, true}) {
    nn::ParamList params;
    nn::Scope scope(params, at::kDouble, {});
    const Pooler pooler(scope / "pooler", kHidden, 0.1, {});
    const SampleHead head(scope / "head",
                          {.hidden = kHidden, .outputs = 3, .dropout = 0.2, .term = "term"});
    const nn::ResidentStore store(params, at::kCPU);
    for (nn::Param& param : params) param.initialize(1);
    test::Pass pass(nn::SequenceLayout::dense(kBatch, kSequence, {4, 9}, at::kCPU));
    pass.ctx.training = true;
    const at::Tensor x = input_x().requires_grad_(true), labels = at::tensor({2, 0}, at::kLong);
    const nn::MemoryScope memory(nn::MemoryCategory::kActivations);
    const int64_t before = test::held_bytes();
    nn::SavedTensors account;
    at::Tensor loss;
    {
      const nn::SavedTensorsScope accounted(account);
      const nn::SavedHooksScope installed(offloaded ? std::make_shared<test::Offload>() : nullptr);
      loss = head.class_loss(
          head.logits(pooler.forward(first_tokens(x, comm::Group(), pass.ctx), pass.ctx), pass.ctx),
          labels, pass.ctx);
    }
    const int64_t kept = test::held_bytes() - before - static_cast<int64_t>(loss.nbytes());
    EXPECT_EQ(kept, account.bytes({x, pass.layout.row_ids}));
    EXPECT_EQ(kept == 0, offloaded);
    loss.backward();
    EXPECT_GT(x.grad().abs().max().item<double>(), 0);
  }
}

} // namespace
} // namespace pentatron::layers
