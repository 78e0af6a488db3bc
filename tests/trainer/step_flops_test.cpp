// What MFU counts of a step: the products that the ranks make. Those of a real step, one by one:
// tests/roofline.
#include "pentatron/trainer/step_flops.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "pentatron/checkpoint/tensor_io.h"
#include "pentatron/models/param_specs.h"
#include "pentatron/trainer/adapters.h"
#include "pentatron/trainer/families.h"
#include "tests/support/model_cost.h"
#include "tests/support/ranks.h"
#include "tests/trainer/adapter_run.h"
#include "tests/trainer/layout_runs.h"
#include "tests/trainer/tiny_run.h"

namespace pentatron::trainer {
namespace {

/// A step of two microbatches of 32 tokens, in two samples each.
class LabelledSteps : public testing::Test {
 protected:
  /// Labels at these places of the first, second, third and fourth sample.
  Config config(const std::vector<std::vector<int64_t>>& labelled, std::vector<std::string> keys) {
    const at::Tensor ids = at::arange(64, at::kLong).view({1, 4, 16}) + 5,
                     labels = at::full_like(ids, -100);
    for (size_t row = 0; row < labelled.size(); ++row)
      for (const int64_t place : labelled[row]) labels[0][static_cast<int64_t>(row)][place] = 7;
    const std::string file = scratch / fmt::format("batches{}.safetensors", ++files);
    checkpoint::write_tensors(file, {{"input_ids", ids}, {"labels", labels}});
    keys.insert(keys.end(), {"dataset.type=batches", "train.train_iters=1",
                             fmt::format("logger.dir={}/log{}", scratch.path.string(), files)});
    return test::tiny(file, keys);
  }
  static double flops(const Config& config) {
    const Json step = test::run(config).steps.at(0);
    return 1e12 * step["tflops"].get<double>() * step["step_time_s"].get<double>();
  }
  static double expected(const Config& config, int64_t head_rows) {
    return test::model_cost(config.model,
                            {{.tokens = 64, .squared_lengths = 4 * 256, .head_rows = head_rows}})
        .total_flops();
  }

  const test::Scratch scratch;
  int files = 0;
};

std::vector<int64_t> place_range(int64_t begin, int64_t end) {
  std::vector<int64_t> all;
  for (int64_t place = begin; place < end; ++place) all.push_back(place);
  return all;
}

TEST_F(LabelledSteps, CountTheLogitsThatEachMicrobatchComputes) {
  // Labels of a file are those of the token before. Of the second microbatch 30 of 32 tokens have
  // one, too many to leave out the others.
  const Config few = config({{3, 5, 9}, {}, place_range(0, 16), place_range(0, 16)}, {});
  EXPECT_NEAR(flops(few) / expected(few, 3 + 32), 1, 1e-9);
  const Config half = config({{3}, {}, place_range(1, 9), {}}, {});
  EXPECT_NEAR(flops(half) / expected(half, 1 + 8), 1, 1e-9);
}

TEST_F(LabelledSteps, OfBertCountTheTargetsOfTheBatch) {
  const std::vector<std::string> bert = {"model.type=bert", "model.binary_head=false"};
  const Config many = config({{3, 5, 9}, {}, place_range(0, 12), place_range(2, 14)}, bert);
  EXPECT_NEAR(flops(many) / expected(many, 3 + 24), 1, 1e-9);
  const Config one = config({{3}, {4}, {5}, {6}}, bert);
  EXPECT_NEAR(flops(one) / expected(one, 4), 1, 1e-9);
}

TEST(HeadRowsOfContextRanks, AreThoseThatEachRankComputes) {
  const models::ModelSpec spec = models::model_spec({});
  data::Batch batch;
  data::FieldValues& labels = batch.fields["labels"];
  labels.field = data::label_field();
  labels.ints.assign(16, -100);
  for (size_t i = 4; i < 11; ++i) labels.ints[i] = 1; // of tokens 4 to 11, which rank 1 of 2 has
  data::StreamShape& tokens = batch.streams["tokens"];
  tokens.sample_starts = {0, 16};
  tokens.real.push_back({0, 10});
  const HeadRows one = count_head_rows(batch, spec, 1), two = count_head_rows(batch, spec, 2);
  EXPECT_EQ(one.computed, 7);
  EXPECT_EQ(one.real, 7);
  EXPECT_EQ(two.computed, 8) << "7 of the 8 tokens of a rank have a target";
  EXPECT_EQ(two.real, 6);
  labels.ints.assign(16, 1);
  EXPECT_EQ(count_head_rows(batch, spec, 1).computed, 16);
  EXPECT_EQ(count_head_rows(batch, spec, 1).real, 10);
  labels.field.stream = ""; // of whole samples
  EXPECT_EQ(count_head_rows(batch, spec, 1).computed, 0);
}

TEST(ShareOfTargets, IsKnownOfBertsDataset) {
  const test::Scratch scratch;
  const auto share = [&](const std::string& work) {
    return share_of_targets(test::layout_config(work, "", 1, scratch));
  };
  EXPECT_EQ(share("bert"), 0.1); // dataset.mask_prob
  EXPECT_EQ(share("t5"), 1);
  EXPECT_EQ(share("llama"), 1);
}

constexpr double kRealTokens = 32, kComputedTokens = 40, kRealRows = 16,
                 kComputedRows = 20; // of a step

/// Two samples of a model that is not built, on a rank of `tp`.
StepFlops counted_flops(const Config& config, const comm::Group& tp = {}) {
  const auto model =
      models::make_model(config.model, {.tp = tp, .adapters = plan_adapters(config)});
  std::vector<bool> trained(model->spec().segments.size(), false);
  for (const nn::Param& param : model->params())
    for (const int64_t segment : param.segments())
      if (trains(config, param)) trained[static_cast<size_t>(segment)] = true;
  model->limit_backward(trained);
  return FlopCounter(config, *model, /*stages=*/1)
      .step(2, {{.tokens = 40, .real_tokens = 32, .squared_lengths = 512}},
            {.computed = 20, .real = 16});
}

nn::LayerShape real_shape() {
  return {.tokens = 32, .squared_lengths = 512, .head_rows = 16};
}

/// Of everything, forward and backward.
double all_flops(const Config& config) {
  return test::model_cost(config.model, {real_shape()}).total_flops();
}

/// FLOPs of a product with these weights for each row.
double by_row(const Config& config, const std::vector<std::string>& weights) {
  const models::ParamSpecs specs = models::param_specs(config.model);
  double elements = 0;
  for (const std::string& name : weights) elements += static_cast<double>(specs.at(name).numel());
  return 2 * elements;
}

std::vector<std::string> matrices_of_layer(int layer) {
  std::vector<std::string> names;
  for (const char* const name : {"attention.qkv", "attention.proj", "mlp.fc1", "mlp.fc2"})
    names.push_back(fmt::format("layers.{}.{}.weight", layer, name));
  return names;
}

Config with_frozen(const std::string& patterns, std::vector<std::string> more = {}) {
  if (!patterns.empty()) more.push_back("train.freeze=[" + patterns + "]");
  return test::tiny("unused", more);
}

TEST(FrozenWeights, HaveNoGradientsToCount) {
  const Config all = with_frozen("");
  EXPECT_DOUBLE_EQ(counted_flops(all).model, all_flops(all));
  const double layers = by_row(all, matrices_of_layer(0)) + by_row(all, matrices_of_layer(1));
  const StepFlops everything = counted_flops(all),
                  none = counted_flops(with_frozen("\"layers.*\""));
  EXPECT_DOUBLE_EQ(none.model, everything.model - kRealTokens * layers) << "the embedding trains";
  EXPECT_DOUBLE_EQ(none.hardware, everything.hardware - kComputedTokens * layers);
  const std::string fc1 = "layers.1.mlp.fc1.weight";
  EXPECT_DOUBLE_EQ(counted_flops(with_frozen('"' + fc1 + '"')).model,
                   everything.model - kRealTokens * by_row(all, {fc1}));
  EXPECT_DOUBLE_EQ(counted_flops(with_frozen("\"*norm.weight\"")).model, everything.model)
      << "which are in no product";
}

TEST(FrozenWeights, OfTheOutputLayerCountItsRows) {
  for (const std::string untied : {"false", "true"}) {
    const std::vector<std::string> untie = {"model.untie_embeddings_and_output_weights=" + untied};
    const Config all = with_frozen("", untie);
    const std::string table = untied == "false" ? "embedding.word.weight" : "output.weight";
    const StepFlops everything = counted_flops(all),
                    none = counted_flops(with_frozen('"' + table + '"', untie));
    const double row = by_row(all, {table});
    EXPECT_DOUBLE_EQ(none.model, everything.model - kRealRows * row) << table;
    EXPECT_DOUBLE_EQ(none.hardware, everything.hardware - kComputedRows * row) << table;
  }
}

TEST(FrozenWeights, BelowAllThatTrainsCountTheForwardPass) {
  const std::string lower = "\"embedding.*\",\"layers.0.*\"";
  for (const std::string placement : {"pre", "output", "post"}) {
    const std::vector<std::string> keys = {"model.untie_embeddings_and_output_weights=true",
                                           "model.norm_placement=" + placement};
    const Config all = with_frozen("", keys);
    double expected =
        all_flops(all) - 2 * models::segment_cost(all.model, {real_shape()}, 1).forward_flops();
    // Without a norm before it, the first product of layer 1 has an input whose gradient nobody
    // needs.
    if (placement != "pre")
      expected -= kRealTokens * by_row(all, {"layers.1.attention.qkv.weight"});
    const Config frozen = with_frozen(lower, keys);
    test::run_ranks(2, [&](const comm::Group& tp) {
      for (const comm::Group& group : {comm::Group(), tp})
        EXPECT_DOUBLE_EQ(counted_flops(frozen, group).model, expected)
            << placement << " tp=" << group.size();
    });
  }
}

TEST(FrozenWeights, BelowAllAdaptersHaveNoInputGradientToCount) {
  for (const std::string placement : {"pre", "output", "post"}) {
    const Config config = test::tiny("unused", {"peft.type=lora", "peft.r=4",
                                                "model.untie_embeddings_and_output_weights=true",
                                                "model.norm_placement=" + placement});
    const double layers =
        by_row(config, matrices_of_layer(0)) + by_row(config, matrices_of_layer(1));
    double expected = all_flops(config) - kRealTokens * layers -
                      kRealRows * by_row(config, {"output.weight"}); // gradients of weights
    if (placement != "pre")
      expected -= kRealTokens * by_row(config, {"layers.0.attention.qkv.weight"});
    EXPECT_DOUBLE_EQ(counted_flops(config).model, expected) << placement;
  }
}

TEST(PackedDocuments, CountWhatEachSeesInTheWindow) {
  data::StreamTotals totals{.tokens = 8192, .real_tokens = 8192};
  for (int i = 0; i < 6144; ++i) totals.lengths.add(1);
  totals.lengths.add(2048);
  totals.squared_lengths = 6144 + 2048 * 2048;
  const auto flops = [&](std::vector<std::string> keys) {
    keys.insert(keys.end(), {"model.num_layers=1", "model.hidden_size=16"});
    const Config config = test::tiny("unused", keys);
    const auto model = models::make_model(config.model, {});
    return FlopCounter(config, *model, /*stages=*/1)
        .step(1, {totals}, {.computed = 8192, .real = 8192})
        .model;
  };
  for (const int64_t window : {512, 1024, 2047, 2048, 8192}) {
    // Of a document with l tokens, the window w hides (l - w)^2 / 2 pairs.
    const double beyond = std::max(0.0, 2048.0 - static_cast<double>(window));
    EXPECT_DOUBLE_EQ(flops({}) - flops({fmt::format("model.window_size={}", window)}),
                     3 * 2 * beyond * beyond * 16)
        << window;
  }
}

using AdapterFlops = AdapterRun;

TEST_F(AdapterFlops, CountNoGradientsOfTheBaseButOfModulesThatAreSaved) {
  const Config adapters = config({}), saved = config({"peft.modules_to_save=[lm_head]"});
  const double layers =
      by_row(adapters, matrices_of_layer(0)) + by_row(adapters, matrices_of_layer(1));
  const double expected = all_flops(adapters) - kRealTokens * layers;
  EXPECT_DOUBLE_EQ(counted_flops(saved).model, expected);
  EXPECT_DOUBLE_EQ(counted_flops(adapters).model,
                   expected - kRealRows * by_row(adapters, {"output.weight"}));
}

} // namespace
} // namespace pentatron::trainer
