// train.freeze: which parameters a pattern names, and that they alone stay what they are.
#include "pentatron/trainer/families.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <regex>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pentatron/base/safetensors.h"
#include "pentatron/checkpoint/sharded/manifest.h"
#include "pentatron/checkpoint/tensor_io.h"
#include "pentatron/models/param_specs.h"
#include "tests/support/log_capture.h"
#include "tests/support/ranks.h"
#include "tests/support/tensors.h"
#include "tests/trainer/layout_runs.h"
#include "tests/trainer/tiny_run.h"

namespace pentatron::trainer {
namespace {

namespace fs = std::filesystem;
using test::log_of;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(FreezePatterns, AreShellWildcardsOverWholeNames) {
  const std::string name = "layers.10.mlp.fc1.weight";
  for (const char* pattern :
       {"layers.10.mlp.fc1.weight", "*", "layers.*", "*.weight", "layers.*.fc?.weight",
        "layers.1[0-3].*", "layers.[!2]*", "layers.??.*"})
    EXPECT_TRUE(is_frozen({"other", pattern}, name)) << pattern;
  for (const char* pattern : {"", "layers", "layers.1.*", "fc1", "mlp.*", "layers.?.*",
                              "layers.1[1-3].*", "Layers.*", "layers.10.mlp.fc1.weight."})
    EXPECT_FALSE(is_frozen({pattern}, name)) << pattern;
  EXPECT_FALSE(is_frozen({}, name));
}

std::string config_error(const std::string& freeze) {
  return test::error_of([&] { test::tiny("unused", {"train.freeze=" + freeze}); });
}

TEST(FreezePatterns, ThatMatchNothingAreErrorsThatNameSimilarOnes) {
  EXPECT_THAT(config_error("[\"embeding.*\", \"layers.0.*\"]"),
              AllOf(HasSubstr("train.freeze contains \"embeding.*\", which matches no parameter"),
                    HasSubstr("its parameters are embedding.word.weight to "),
                    HasSubstr("try: train.freeze=[\"layers.0.*\", \"embedding.*\"]")));
  EXPECT_THAT(config_error("[\"layers.0.mlp.fc1.wieght\"]"),
              HasSubstr("try: train.freeze=[\"layers.0.mlp.fc1.weight\"]"));
  EXPECT_THAT(config_error("[layers.2.mlp.fc1.weight]"), HasSubstr("layers.2.mlp.fc1.weight"))
      << "there are two layers";
  EXPECT_THAT(config_error("[qqqqqqqqqqqqqqqq]"), HasSubstr("try: remove train.freeze"));
  EXPECT_THAT(config_error("[layers.0]"), HasSubstr("try: train.freeze=[\"layers.0.*\"]"));
  // Never one that freezes more than was asked for.
  EXPECT_THAT(config_error("[\"layers.0.*\", \"layers.7.*\"]"),
              AllOf(HasSubstr("try: train.freeze=[\"layers.0.*\", \"layers."),
                    testing::Not(HasSubstr("\"layers.*\""))));
  EXPECT_THAT(config_error("[\"embedding.*,layers.0.*\"]"),
              HasSubstr("try: train.freeze=[\"embedding.*\", \"layers.0.*\"]"));
  EXPECT_THAT(config_error("embedding.*,layers.0.*"),
              HasSubstr("try: train.freeze=[\"embedding.*\", \"layers.0.*\"]"));
  EXPECT_NO_THROW(test::tiny("unused", {"train.freeze=[\"layers.0.*\"]"}));
}

TEST(FreezePatterns, LeaveSomethingToTrain) {
  EXPECT_THAT(config_error("[\"*\"]"), AllOf(HasSubstr("train.freeze=[\"*\"] freezes all"),
                                             HasSubstr("try: train.freeze=[]")));
  EXPECT_THAT(config_error("[\"[!f]*\", \"final*\"]"), HasSubstr("nothing to train"));
}

/// The kinds of parameters of a work, as patterns over its layers.
std::set<std::string> kinds_of(const models::ModelConfig& model) {
  std::set<std::string> kinds;
  for (const auto& [name, spec] : models::param_specs(model))
    kinds.insert(std::regex_replace(name, std::regex("[.][0-9]+[.]"), ".*."));
  return kinds;
}

/// One step with Adam, whose update of a parameter depends on nothing but its own gradient: a
/// frozen kind keeps its values, all others move bit for bit as they do in a run without.
TEST(Freezing, OfEachKindOfParameterChangesNoOther) {
  const std::string one_step = "train.train_iters=1 train.eval_interval=1 optimizer.clip_grad=0 "
                               "dtype=fp64 train.freeze=";
  std::set<std::set<std::string>> seen; // works that train the same model in other ways
  std::set<std::string> frozen;         // kinds; each once, in full in each model
  for (const test::Work& work : test::works()) {
    if (work.name.ends_with("_frozen") || work.name == "ramp") continue;
    const auto with = [&](const char* key) { return work.keys.find(key) != std::string::npos; };
    if (with("peft.") || with("optimizer.optimizer") || with("mixed_precision")) continue;
    const test::Scratch scratch;
    const std::set<std::string> kinds =
        kinds_of(test::layout_config(work.name, "", 1, scratch).model);
    if (!seen.insert(kinds).second) continue;
    const test::Trained start = test::train_layout(work.name, 1, "train.train_iters=0 dtype=fp64"),
                        all = test::train_layout(work.name, 1, one_step + "[]");
    bool again = false; // every other kind is frozen in recomputed layers
    for (const std::string& kind : kinds) {
      if (!frozen.insert(kind).second && !test::full_matrix()) continue;
      SCOPED_TRACE(work.name + " " + kind);
      again = !again;
      const test::Trained run = test::train_layout(
          work.name, 1, one_step + "[\"" + kind + "\"]" + (again ? "" : " train.recompute=full"));
      EXPECT_EQ(run.losses, all.losses);
      EXPECT_LE(run.norms[0], all.norms[0]);
      for (const auto& [name, weight] : run.weights)
        EXPECT_TRUE(at::equal(weight, is_frozen({kind}, name) ? start.weights.at(name)
                                                              : all.weights.at(name)))
            << name;
    }
  }
}

/// Frozen parts with nothing to train before them: works and patterns.
const std::vector<std::pair<std::string, std::string>> kLower = {
    {"llama", R"(["embedding.*","layers.[0-2].*"])"},
    {"llama", R"(["embedding.*","layers.*"])"},
    {"bert", R"(["embedding.*","layers.[01].*"])"},
    {"classes", R"(["embedding.*","layers.*"])"},
    {"t5_untied", R"(["embedding.*","encoder.*"])"},
    {"t5_untied", R"(["embedding.*","encoder.layers.0.*"])"},
    {"t5_untied", R"(["embedding.*","decoder.*"])"},
    {"t5", R"(["embedding.*","encoder.*","*.relative_bias.*","decoder.layers.0.*"])"}};

/// As above: what trains moves bit for bit as it does in a run that differentiates everything.
TEST(Freezing, OfLowerPartsChangesNoOtherInAnyLayout) {
  const std::string one_step = "train.train_iters=1 train.eval_interval=1 optimizer.clip_grad=0 "
                               "dtype=fp64 ";
  for (const auto& [work, freeze] : kLower) {
    const test::Trained start = test::train_layout(work, 1, "train.train_iters=0 dtype=fp64"),
                        all = test::train_layout(work, 1, one_step);
    const auto check = [&](const std::string& keys, int ranks) {
      SCOPED_TRACE(work + " " + freeze + " " + keys);
      const test::Trained run =
          test::train_layout(work, ranks, one_step + "train.freeze=" + freeze + " " + keys);
      if (!test::is_first_process()) return;
      const std::vector<std::string> patterns =
          parse_json(freeze, "patterns").get<std::vector<std::string>>();
      int trained = 0;
      for (const auto& [name, weight] : run.weights) {
        const bool frozen = is_frozen(patterns, name);
        trained += frozen ? 0 : 1;
        test::expect_close(weight, (frozen ? start : all).weights.at(name),
                           {frozen || ranks == 1 ? 0 : 1e-7, 0});
      }
      EXPECT_GT(trained, 0);
    };
    check("", 1);
    check("train.recompute=full", 1);
    const std::string two = "parallel.pipeline_model_parallel_size=2 parallel.pipeline_schedule=";
    check(two + "1f1b", 2);
    check(two + "zb_v", 2);
    check("ddp.zero_stage=3 train.recompute=full", 2);
  }
}

/// Bytes that the tape of one pass keeps, and inputs of segments among them.
TEST(Freezing, OfLowerLayersKeepsNothingOfThem) {
  const test::Scratch scratch;
  const models::ModelConfig config = test::layout_config("bert_pre", "", 1, scratch).model;
  const auto kept = [&](const std::vector<std::string>& freeze) {
    const std::unique_ptr<models::Model> model = models::make_model(config, {});
    std::vector<bool> trains(model->spec().segments.size(), false);
    for (nn::Param& param : model->params()) {
      param.trainable = !is_frozen(freeze, param.name());
      for (const int64_t segment : param.segments())
        if (param.trainable) trains[static_cast<size_t>(segment)] = true;
    }
    model->limit_backward(trains);
    nn::ResidentStore store(model->params(), at::kCPU);
    model->initialize(1);
    model->finish(at::kCPU, {16});
    const at::Tensor ids = at::arange(32, at::kLong);
    const nn::Microbatch batch{.fields = {{"input_ids", ids}, {"labels", ids}},
                               .layouts = {nn::SequenceLayout::dense(2, 16, {0, 1}, at::kCPU)}};
    nn::WgradQueue wgrad;
    nn::ForwardContext ctx{.batch = &batch, .wgrad = &wgrad, .training = true};
    nn::Tape tape;
    model->whole().forward({}, ctx, store, &tape);
    const int64_t bytes =
        tape.saved().bytes({ids, batch.layouts[0].positions, batch.layouts[0].row_ids});
    const auto uses = tape.saved().list();
    const auto inputs = std::ranges::count(uses, "input", &nn::SavedTensors::Use::name);
    model->whole().backward({}, ctx, store, tape);
    for (const nn::Param& param : model->params()) EXPECT_EQ(param.outstanding_uses(), 0);
    return std::pair(bytes, inputs);
  };
  const auto all = kept({"embedding.*"}), one = kept({"embedding.*", "layers.0.*"}),
             two = kept({"embedding.*", "layers.[01].*"}), head = kept({"embedding.*", "layers.*"});
  EXPECT_EQ(all.second, 5); // four layers and the head
  EXPECT_EQ(head.second, 1);
  EXPECT_EQ(all.first - one.first, one.first - two.first) << "what a layer keeps";
  EXPECT_GT(one.first, two.first);
  EXPECT_EQ(all.first - 4 * (one.first - two.first), head.first);
  EXPECT_EQ(kept({"layers.[0-2].*"}).second, 5) << "the embedding trains";
  EXPECT_LT(kept({"layers.[0-2].*"}).first, kept({}).first) << "no weight gradient needs x";
}

TEST(Freezing, OfATiedTableOnTwoStagesNeedsNoSumOfThem) {
  const std::string freeze = " dtype=fp64 train.train_iters=3";
  const test::Trained start = test::train_layout("gpt2", 1, "train.train_iters=0 dtype=fp64"),
                      run = test::train_layout("gpt2_frozen", 2,
                                               "parallel.pipeline_model_parallel_size=2" + freeze);
  if (!test::is_first_process()) return;
  for (const char* frozen : {"embedding.word.weight", "layers.1.attention.qkv.bias"})
    EXPECT_TRUE(at::equal(run.weights.at(frozen), start.weights.at(frozen))) << frozen;
  EXPECT_FALSE(at::equal(run.weights.at("layers.0.mlp.fc2.weight"),
                         start.weights.at("layers.0.mlp.fc2.weight")));
}

class FrozenRuns : public testing::Test {
 protected:
  FrozenRuns() { test::write_documents(scratch / "data.jsonl", 100); }
  Config config(std::vector<std::string> keys) const {
    keys.insert(keys.begin(),
                {"dtype=bf16", "checkpoint.save=" + (scratch / "run"),
                 "logger.dir=" + (scratch / "log"), "train.train_iters=4", "checkpoint.keep=0"});
    return test::tiny(scratch / "data.jsonl", std::move(keys));
  }
  /// Names of the tensors of a checkpoint that begin with the text.
  std::vector<std::string> saved(int64_t step, const std::string& begin) const {
    std::vector<std::string> names;
    const auto manifest =
        checkpoint::read_manifest(scratch.path / "run" / fmt::format("step_{:08}", step));
    for (const auto& [name, info] : manifest.tensors)
      if (name.starts_with(begin)) names.push_back(name);
    return names;
  }

  const test::Scratch scratch;
  const std::string load = "checkpoint.load=" + (scratch / "run");
};

TEST_F(FrozenRuns, SaveNoStateOfThemAndExportThem) {
  const test::Trace start = test::run(
      config({"train.train_iters=0", "checkpoint.save=", "logger.dir=" + (scratch / "start")}));
  const test::Trace run =
      test::run(config({"train.freeze=[embedding.word.weight]", "checkpoint.export_hf=true"}));
  EXPECT_THAT(saved(4, "embedding.word.weight"), testing::ElementsAre("embedding.word.weight"));
  EXPECT_THAT(saved(4, "final_norm.weight"),
              testing::ElementsAre("final_norm.weight", "final_norm.weight/exp_avg",
                                   "final_norm.weight/exp_avg_sq", "final_norm.weight/master"));
  const at::Tensor table = start.weights.at("embedding.word.weight");
  EXPECT_TRUE(at::equal(run.weights.at("embedding.word.weight"), table));
  const SafetensorsFile file(scratch.path / "run/hf/step_00000004/model.safetensors");
  const at::Tensor exported = checkpoint::to_tensor(file.at("model.embed_tokens.weight"));
  EXPECT_TRUE(at::equal(exported, table.narrow(0, 0, exported.size(0))));
}

TEST_F(FrozenRuns, GoOnBitForBit) {
  const std::string freeze = "train.freeze=[\"layers.0.*\", embedding.word.weight]";
  const test::Trace whole =
      test::run(config({freeze, "checkpoint.save=", "logger.dir=" + (scratch / "whole")}));
  test::run(config({freeze, "train.exit_interval=2"}));
  const test::Trace rest = test::run(config({freeze, load}));
  ASSERT_EQ(rest.report.iterations, 4);
  for (const auto& [name, weight] : whole.weights)
    EXPECT_TRUE(at::equal(rest.weights.at(name), weight)) << name;
}

TEST_F(FrozenRuns, ResumeWithOtherParametersFrozen) {
  test::run(config({"train.freeze=[\"layers.0.*\"]", "train.exit_interval=2"}));
  EXPECT_TRUE(saved(2, "layers.0.mlp.fc1.weight/").empty());
  std::string log = log_of([&] {
    test::run(config({"train.freeze=[\"layers.1.*\"]", "train.exit_interval=3", load}));
  });
  EXPECT_THAT(log,
              AllOf(HasSubstr("optimizer state starts at zero for layers.0.attention.proj.weight "
                              "and 5 others: not trained before"),
                    HasSubstr("optimizer state is not loaded for layers.1.attention.proj.weight "
                              "and 5 others: frozen now"),
                    HasSubstr("it used train.freeze=[\"layers.0.*\"] instead of")));
  EXPECT_FALSE(saved(3, "layers.0.mlp.fc1.weight/").empty());
  EXPECT_TRUE(saved(3, "layers.1.mlp.fc1.weight/").empty());
  // The state that began late goes on as such.
  const Json state =
      checkpoint::read_manifest(scratch.path / "run/step_00000003").state.at("first_steps");
  EXPECT_EQ(state.size(), 6u);
  EXPECT_EQ(state.at("layers.0.mlp.fc1.weight"), 2);
  log = log_of([&] { test::run(config({"train.freeze=[\"layers.1.*\"]", load})); });
  EXPECT_THAT(log, Not(HasSubstr("optimizer state")));
  EXPECT_EQ(checkpoint::read_manifest(scratch.path / "run/step_00000004").state.at("first_steps"),
            state);
}

/// A parameter that begins to train late moves as it does in a new run: Adam's corrections count
/// its own steps.
TEST_F(FrozenRuns, ThawedParametersBeginAsInANewRun) {
  const std::vector<std::string> keys = {"dtype=fp64", "optimizer.clip_grad=0",
                                         "scheduler.lr_decay_style=constant",
                                         "optimizer.weight_decay=0"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), keys.begin(), keys.end());
    return config(more);
  };
  const test::Trace before =
      test::run(with({"train.freeze=[\"layers.*.mlp.*\"]", "train.train_iters=2", "seed=7"}));
  const test::Trace after = test::run(with({load, "train.train_iters=3", "seed=7"}));
  const std::string name = "layers.0.mlp.fc1.weight";
  const at::Tensor moved = (after.weights.at(name) - before.weights.at(name)).abs();
  // The first step of Adam is lr for every element whose gradient is not tiny.
  EXPECT_NEAR(moved.max().item<double>(), 1e-2, 1e-5);
  EXPECT_GT(moved.median().item<double>(), 0.99e-2);
}

TEST_F(FrozenRuns, StateThatIsMissingForAnotherReasonIsAnError) {
  test::run(config({"train.freeze=[\"layers.0.*\"]", "optimizer.optimizer=sgd",
                    "optimizer.sgd_momentum=0", "train.train_iters=1"}));
  const std::string error = test::error_of([&] {
    test::run(config({"optimizer.optimizer=sgd", "optimizer.sgd_momentum=0.5", load}));
  });
  EXPECT_THAT(error, AllOf(HasSubstr("layers.1.mlp.fc1.weight/momentum_buffer is not in"),
                           Not(HasSubstr("layers.0"))));
}

} // namespace
} // namespace pentatron::trainer
