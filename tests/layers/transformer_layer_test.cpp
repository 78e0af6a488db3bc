// Attention, MLP and the whole layer against the formulas of their papers, differentiated by
// LibTorch in fp64, on one rank and split over two.
#include "tests/layers/layer_cases.h"

namespace pentatron::layers {
namespace {

TEST_P(LayerTest, GradientsAreThoseOfTheFormula) {
  std::vector<at::Tensor> inputs = {input_x(), input_memory(GetParam())};
  Layer model(GetParam(), comm::Group());
  test::Pass pass(layout_of(GetParam()));
  const auto actual = test::differentiate(
      [&](const auto& in) { return model.forward(in, pass.ctx); }, inputs, input_dy());
  for (const nn::Param& param : model.params) inputs.push_back(param.value());
  const auto expected = test::differentiate(
      [&](const auto& in) {
        Leaves p;
        size_t i = 1;
        for (const nn::Param& param : model.params) p[param.name()] = in[++i];
        return plain_layer(in[0], in[1], p, GetParam());
      },
      inputs, input_dy());
  expect_close(actual.y, expected.y, kLayerExact);
  expect_close(actual.grads[0], expected.grads[0], kLayerExact);
  EXPECT_EQ(actual.grads[1].defined(), GetParam().options.cross.has_value());
  if (GetParam().options.cross) expect_close(actual.grads[1], expected.grads[1], kLayerExact);
  size_t i = 1;
  for (const nn::Param& param : model.params) {
    SCOPED_TRACE(param.name());
    expect_close(param.main_grad(), expected.grads[++i], kLayerExact);
    EXPECT_EQ(param.outstanding_uses(), 0);
  }
}

/// Runs the layer forward and backward.
test::Derivatives run(Layer& model) {
  test::Pass pass(layout_of(model.test_case));
  const at::ScalarType dtype = model.store.values().scalar_type();
  return test::differentiate([&](const auto& in) { return model.forward(in, pass.ctx); },
                             {input_x().to(dtype), input_memory(model.test_case).to(dtype)},
                             input_dy().to(dtype));
}

TEST_P(LayerTest, AFrozenParameterChangesNothingElse) {
  Layer trained(GetParam(), comm::Group());
  const auto expected = run(trained);
  for (const nn::Param& param : trained.params) {
    SCOPED_TRACE(param.name() + " is frozen");
    Layer model(GetParam(), comm::Group());
    model.params.find(param.name()).trainable = false;
    const auto actual = run(model);
    EXPECT_TRUE(test::same_bits(actual.grads[0], expected.grads[0]));
    for (const nn::Param& other : model.params) {
      EXPECT_EQ(other.outstanding_uses(), 0) << other.name();
      if (&other == &model.params.find(param.name())) {
        EXPECT_EQ(other.main_grad().abs().max().item<double>(), 0);
      } else {
        EXPECT_TRUE(
            test::same_bits(other.main_grad(), trained.params.find(other.name()).main_grad()))
            << other.name();
      }
    }
  }
}

TEST_P(LayerTest, NarrowTypesAreNearFp64) {
  Layer exact(GetParam(), comm::Group());
  const auto expected = run(exact);
  for (const auto& [dtype, bound] : {std::pair{at::kFloat, 1e-5}, {at::kBFloat16, 5e-2}}) {
    Layer model(GetParam(), comm::Group(), dtype);
    const auto actual = run(model);
    EXPECT_EQ(actual.y.scalar_type(), dtype);
    EXPECT_LT(test::relative_error(actual.y, expected.y), bound);
    EXPECT_LT(test::relative_error(actual.grads[0], expected.grads[0]), bound);
    for (const nn::Param& param : model.params) {
      EXPECT_EQ(param.main_grad().scalar_type(), at::kFloat);
      const at::Tensor grad = exact.params.find(param.name()).main_grad();
      // Of the whole tensor: without rotary positions the key part of a bias is rounding noise.
      EXPECT_LT(test::relative_error(param.main_grad(), grad), 2 * bound) << param.name();
    }
  }
}

/// Output, input gradients and global gradients on `ranks` ranks, all dropouts on.
struct Sharded {
  at::Tensor y, dx, dmemory;
  std::map<std::string, at::Tensor> grads;
};

Sharded on_ranks(LayerCase c, int ranks, bool sequence = false) {
  c.options.hidden_dropout = c.options.attention.dropout = c.options.mlp.dropout = 0.2;
  c.options.dropout_site = 1;
  c.options.mlp.dropout_site = 3;
  if (c.options.cross) {
    c.options.cross->dropout = 0.2;
    c.options.cross->dropout_site = 4;
    c.options.cross_dropout_site = 5;
  }
  Sharded result;
  std::mutex mutex;
  test::run_ranks(ranks, [&](const comm::Group& tp) {
    Layer model(c, parallel::TensorParallel(tp, sequence, false));
    test::Pass pass(layout_of(c));
    pass.ctx.training = true;
    if (sequence) {
      pass.layout.cut_outer(tp.rank(), tp.size());
      model.memory.cut_outer(tp.rank(), tp.size());
    }
    auto own =
        test::differentiate([&](const auto& in) { return model.forward(in, pass.ctx); },
                            {pass.layout.outer(input_x()), model.memory.outer(input_memory(c))},
                            pass.layout.outer(input_dy()));
    for (at::Tensor* x : {&own.y, own.grads.data(), &own.grads[1]}) {
      if (sequence && x->defined()) *x = comm::all_gather(*x, 0, tp);
    }
    const std::lock_guard lock(mutex);
    if (tp.rank() == 0) {
      result.y = own.y;
      result.dx = own.grads[0];
      result.dmemory = own.grads[1];
    }
    for (const nn::Param& param : model.params) {
      auto [entry, fresh] = result.grads.try_emplace(param.name());
      if (fresh) entry->second = at::zeros(param.spec().shape, at::kDouble);
      switch (param.spec().placement("tp").kind) {
      case nn::Placement::Kind::kPartial: // the ranks hold addends
        entry->second += param.main_grad();
        break;
      case nn::Placement::Kind::kReplicate: // every rank holds the full gradient
        if (!fresh) expect_close(param.main_grad(), entry->second, {1e-12, 1e-12});
        [[fallthrough]];
      case nn::Placement::Kind::kShard:
        nn::store_global(param, param.main_grad(), entry->second);
      }
    }
  });
  return result;
}

TEST_P(LayerTest, TwoRanksAreOneRank) {
  const Sharded one = on_ranks(GetParam(), 1);
  for (const bool sequence : {false, true}) {
    SCOPED_TRACE(sequence ? "sequence parallel" : "tensor parallel");
    const Sharded two = on_ranks(GetParam(), 2, sequence);
    expect_close(two.y, one.y, {1e-12, 1e-12});
    expect_close(two.dx, one.dx, {1e-12, 1e-12});
    if (GetParam().options.cross) expect_close(two.dmemory, one.dmemory, {1e-12, 1e-12});
    for (const auto& [name, grad] : one.grads) {
      SCOPED_TRACE(name);
      expect_close(two.grads.at(name), grad, {1e-12, 1e-12});
      EXPECT_GT(grad.abs().max().item<double>(), 0);
    }
  }
}

nn::LayerShape shape_of(const at::Tensor& x, int ranks, bool sequence = false) {
  return {.tokens = kBatch * kSequence,
          .squared_lengths = kBatch * kSequence * kSequence,
          .element_bytes = static_cast<int64_t>(x.element_size()),
          .acc_bytes = x.scalar_type() == at::kDouble ? 8 : 4,
          .tp = ranks,
          .memory_tokens = kBatch * kMemory,
          .crossed_lengths = kBatch * kSequence * kMemory,
          .sequence_parallel = sequence};
}

TEST_P(LayerTest, CostCountsTheFlopsOfTheMatrices) {
  const TransformerLayerOptions& o = GetParam().options;
  for (const int ranks : {1, 2}) {
    test::run_ranks(ranks, [&](const comm::Group& tp) {
      Layer model(GetParam(), tp);
      double flops = 0; // of matrices only
      for (const nn::Param& param : model.params) {
        if (param.shape().size() != 2 || param.name() == "relative_bias.weight") continue;
        const bool of_memory = param.name() == "cross_attention.kv.weight";
        flops +=
            2.0 * kBatch * (of_memory ? kMemory : kSequence) * static_cast<double>(param.numel());
      }
      const nn::Cost cost = TransformerLayer::cost(o, shape_of(at::empty(0, at::kFloat), ranks));
      EXPECT_EQ(cost.forward_gemm_flops, flops);
      EXPECT_EQ(cost.total_flops(), 3 * (cost.forward_gemm_flops + cost.forward_attention_flops));
      // Norms of the whole projection sum a number for each token, of q and of k.
      const int sums = o.attention.qk_norm == QkNorm::kProjection ? 4 : 0;
      const int64_t tokens = kBatch * kSequence;
      int64_t numbers = tokens * (4 * kHidden + sums);
      int count = 4 + sums + (o.cross ? 3 : 0);
      if (const auto& latent = o.attention.latent) { // gradients of what is made of the input
        const int64_t read = latent->query_rank > 0 ? latent->query_rank : kHidden;
        numbers += tokens * (read + latent->rank + latent->rotary_size - kHidden);
        count += 2;
      }
      if (o.cross) numbers += 2 * tokens * kHidden + input_memory(GetParam()).numel();
      EXPECT_EQ(cost.tp_all_reduce.count, ranks == 1 ? 0 : count);
      EXPECT_EQ(cost.tp_all_reduce.bytes, ranks == 1 ? 0 : numbers * 4);
    });
  }
}

TEST_P(LayerTest, CostCountsTheBytesKeptForBackward) {
  nn::install_counting_allocator();
  for (const auto& [dropout, parts] : with_and_without_dropout(some_parts())) {
    SCOPED_TRACE(test::names_of(parts));
    for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
      for (const auto& [ranks, sequence] : {std::pair{1, false}, {2, false}, {2, true}}) {
        test::run_ranks(ranks, [&, ranks = ranks, sequence = sequence](const comm::Group& tp) {
          LayerCase c = GetParam();
          if (dropout) {
            c.options.hidden_dropout = c.options.attention.dropout = c.options.mlp.dropout = 0.1;
          }
          c.bias.reset(); // a table of heads and distances, whatever the tokens
          Layer model(c, parallel::TensorParallel(tp, sequence, false), dtype);
          test::Pass pass(layout_of(c));
          pass.ctx.training = true;
          pass.ctx.recomputed = parts;
          if (sequence) {
            pass.layout.cut_outer(tp.rank(), tp.size());
            model.memory.cut_outer(tp.rank(), tp.size());
          }
          // The memory is another segment's output, kept once for all layers.
          const at::Tensor memory =
              model.memory.outer(input_memory(c)).to(dtype).clone().requires_grad_(true);
          const nn::MemoryScope scope(nn::MemoryCategory::kActivations);
          const int64_t before = test::held_bytes();
          nn::SavedTensors account;
          at::Tensor x = pass.layout.outer(randn({kBatch * kSequence, kHidden}, 1))
                             .to(dtype)
                             .clone()
                             .requires_grad_(true);
          const at::Tensor y = [&] {
            const nn::SavedTensorsScope accounted(account);
            return model.forward({x, memory}, pass.ctx);
          }();
          comm::barrier(tp); // a peer still in a collective holds this rank's part of it
          const int64_t output = static_cast<int64_t>(y.nbytes()); // the next layer's input
          const nn::Cost cost = TransformerLayer::cost(c.options, shape_of(x, ranks, sequence));
          const int64_t expected = cost.saved_bytes - cost.freed_bytes(parts);
          EXPECT_EQ(test::held_bytes() - before - output, expected) << dtype << " on " << ranks;
          EXPECT_EQ(account.bytes({memory, y, pass.layout.positions, pass.layout.row_ids}),
                    expected)
              << "operators keep what their slots hold";
          y.backward(at::ones_like(y));
        });
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, LayerTest, testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.name; });

TEST(AttentionErrors, HeadsThatDoNotDivideAreAConfigError) {
  const LayerCase c = cases()[1]; // two key-value heads
  const std::string message = test::error_of(
      [&] { test::run_ranks(4, [&](const comm::Group& tp) { Layer model(c, tp); }); });
  EXPECT_NE(message.find("attention.qkv.weight"), std::string::npos) << message;
}

} // namespace
} // namespace pentatron::layers
