// What a run takes from a checkpoint, and what it refuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "pentatron/checkpoint/sharded/checkpoint_writer.h"
#include "pentatron/checkpoint/sharded/parity.h"
#include "pentatron/checkpoint/sharded/reader.h"
#include "pentatron/checkpoint/sharded/shard_writer.h"
#include "pentatron/data/dataset.h"
#include "pentatron/optim/narrow_state.h"
#include "pentatron/trainer/differences.h"
#include "tests/support/log_capture.h"
#include "tests/support/ranks.h"
#include "tests/trainer/tiny_run.h"

namespace pentatron::trainer {
namespace {

namespace fs = std::filesystem;
using test::error_of;
using test::log_of;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

/// Copies a checkpoint's tensors into another folder: those for which `name_of` gives a name.
fs::path rewrite(const fs::path& from, const fs::path& dir, const Json& state,
                 const std::function<std::string(const std::string&)>& name_of) {
  checkpoint::CheckpointReader reader(from);
  checkpoint::CheckpointWriter writer(dir, 3);
  std::vector<checkpoint::EntrySpec> entries;
  std::vector<std::string> sources;
  for (const auto& [name, info] : reader.manifest().tensors) {
    if (name_of(name).empty()) continue;
    sources.push_back(name);
    entries.push_back({.name = name_of(name),
                       .dtype = info.dtype,
                       .shape = info.shape,
                       .boxes = {checkpoint::whole_box(info.shape)}});
  }
  checkpoint::ShardFileWriter file(writer.path(), "model.safetensors", entries);
  for (size_t i = 0; i < entries.size(); ++i) file.write(entries[i].name, reader.read(sources[i]));
  const std::vector<std::string> descriptions = {file.finish()};
  return writer.commit(descriptions,
                       {.state = state, .config_yaml = reader.manifest().config_yaml});
}

class Loading : public testing::Test {
 protected:
  Config config(std::vector<std::string> more) const {
    more.insert(more.begin(), {"checkpoint.save=" + (scratch / "run"), "checkpoint.keep=0",
                               "logger.dir=" + (scratch / "log")});
    return test::tiny(data, std::move(more));
  }
  /// Of another run: into folders of its own.
  Config other_run(const std::string& name, std::vector<std::string> more) const {
    more.insert(more.end(), {"checkpoint.save=" + (scratch / name),
                             "logger.dir=" + (scratch / (name + "_log"))});
    return config(std::move(more));
  }
  /// The weights that a run begins with.
  static std::map<std::string, at::Tensor> start(Config config) {
    config.train.train_iters = 0;
    config.checkpoint.save.clear();
    return test::run(config).weights;
  }
  fs::path step(int64_t n) const { return fs::path(scratch / "run") / checkpoint::step_name(n); }
  test::Scratch scratch;
  const std::string load = "checkpoint.load=" + (scratch / "run");
  std::string data = test::write_documents(scratch / "data.jsonl", 100);
};

TEST_F(Loading, FineTuningTakesTheWeightsOnly) {
  const test::Trace first = test::run(config({}));
  test::Trace tuned;
  const std::string log = log_of([&] {
    tuned =
        test::run(other_run("tuned", {load, "checkpoint.finetune=true", "train.train_iters=2"}));
  });
  EXPECT_THAT(log, HasSubstr("step_00000003: starting at iteration 0 with a new optimizer"));
  ASSERT_EQ(tuned.steps.size(), 2u);
  EXPECT_EQ(tuned.steps[0]["iteration"], 1);
  EXPECT_EQ(tuned.steps[0]["consumed_samples"], first.steps[0]["consumed_samples"]);
  EXPECT_LT(tuned.steps[0]["loss"].get<double>(), first.steps[0]["loss"].get<double>());
  for (const auto& [name, weight] : start(config({load, "checkpoint.finetune=true"})))
    EXPECT_TRUE(at::equal(weight, first.weights.at(name))) << name;
  // Other settings of the model are told, and its tensors decide.
  const std::string other = log_of([&] {
    start(config({load, "checkpoint.finetune=true", "model.rotary_base=500"}));
  });
  EXPECT_THAT(other, HasSubstr("were trained with model.rotary_base=10000.0 instead of 500.0"));
}

TEST(OtherModel, SettingsOfANewTaskAreNotNamed) {
  Config config;
  config.model.type = models::ModelType::kBert;
  config.model.head = models::ModelHead::kClassification;
  config.model.num_labels = 3;
  models::ModelConfig saved = config.model;
  saved.head = models::ModelHead::kMaskedLm;
  saved.num_labels = 2;
  saved.vocab_size = 77;
  EXPECT_EQ(log_of([&] { tell_other_model(saved, config, "hf:there"); }), "");
  saved.rotary_base = 7;
  EXPECT_THAT(log_of([&] { tell_other_model(saved, config, "hf:there"); }),
              HasSubstr("the weights of there were trained with model.rotary_base=7.0 instead of"));
}

TEST_F(Loading, FineTuningConvertsTypes) {
  const test::Trace fp32 = test::run(config({}));
  for (const char* type : {"fp64", "bf16"}) {
    const auto weights =
        start(config({load, "checkpoint.finetune=true", std::string("dtype=") + type}));
    for (const auto& [name, weight] : weights)
      EXPECT_TRUE(at::equal(weight, fp32.weights.at(name).to(weight.scalar_type()))) << name;
  }
  // From the master copy, where the stored values were rounded from it.
  test::run(other_run("bf16", {"dtype=bf16"}));
  const std::string load_bf16 = "checkpoint.load=" + (scratch / "bf16");
  checkpoint::CheckpointReader reader(fs::path(scratch / "bf16") / checkpoint::step_name(3));
  for (const auto& [name, weight] : start(config({load_bf16, "checkpoint.finetune=true"}))) {
    const std::vector<std::byte> master = reader.read(name + "/master");
    ASSERT_LE(master.size(), static_cast<size_t>(weight.nbytes())); // rows of padding behind
    EXPECT_EQ(std::memcmp(master.data(), weight.const_data_ptr(), master.size()), 0) << name;
  }
  EXPECT_THAT(error_of([&] { start(config({load_bf16})); }),
              HasSubstr("was trained with dtype=bf16, but this run has dtype=fp32"));
}

TEST_F(Loading, WithoutTheOptimizerTheRunGoesOnAtItsIteration) {
  const test::Trace whole = test::run(other_run("whole", {"train.train_iters=5"}));
  test::run(config({"train.train_iters=5", "train.exit_interval=3"}));
  test::Trace rest;
  const std::string log = log_of([&] {
    rest = test::run(config({load, "train.train_iters=5", "checkpoint.load_optimizer=false"}));
  });
  EXPECT_THAT(log, HasSubstr("at iteration 3 with a new optimizer"));
  ASSERT_EQ(rest.steps.size(), 5u);
  EXPECT_EQ(rest.steps[3]["loss"], whole.steps[3]["loss"]);
  EXPECT_NE(rest.steps[4]["loss"], whole.steps[4]["loss"]);
}

TEST_F(Loading, ACheckpointOfWeightsAloneStartsARun) {
  const test::Trace first = test::run(config({}));
  rewrite(step(3), scratch / "weights", Json::object(),
          [](const std::string& name) { return name.find('/') == std::string::npos ? name : ""; });
  test::Trace trace;
  const std::string log = log_of([&] {
    trace = test::run(other_run(
        "from_weights", {"checkpoint.load=" + (scratch / "weights"), "train.train_iters=1"}));
  });
  EXPECT_THAT(log, HasSubstr("which contains only weights: starting at iteration 0"));
  ASSERT_EQ(trace.steps.size(), 1u);
  EXPECT_EQ(trace.steps[0]["iteration"], 1);
  EXPECT_LT(trace.steps[0]["loss"].get<double>(), first.steps[0]["loss"].get<double>());
  EXPECT_THAT(
      log_of([&] {
        start(config({"checkpoint.load=" + (scratch / "weights"), "seed=5", "dtype=bf16",
                      "optimizer.optimizer=sgd"}));
      }),
      AllOf(HasSubstr("which contains only weights"), Not(HasSubstr("data settings have changed"))))
      << "weights go on with nothing";
}

TEST_F(Loading, EveryTensorThatDoesNotFitIsListed) {
  const test::Trace first = test::run(config({}));
  const Json state = checkpoint::read_manifest(step(3)).state;
  const std::string lost = "layers.1.mlp.fc1.weight";
  rewrite(step(3), scratch / "odd", state, [&](const std::string& name) -> std::string {
    if (name == lost) return "layers.7.mlp.fc1.weight";
    return name == "layers.0.mlp.fc2.weight/exp_avg" ? "" : name;
  });
  ASSERT_TRUE(first.weights.contains(lost));
  const std::string odd = "checkpoint.load=" + (scratch / "odd");
  for (const int ranks : {1, 2}) {
    const std::string error = error_of([&] {
      test::run_ranks(ranks, [&](const comm::Group& world) {
        const Trainer trainer(config({odd, "checkpoint.save=" + (scratch / "more")}), world);
      });
    });
    EXPECT_THAT(error, AllOf(HasSubstr("layers.0.mlp.fc2.weight/exp_avg is not in the checkpoint"),
                             HasSubstr(lost + " is not in the checkpoint"),
                             HasSubstr("layers.7.mlp.fc1.weight is not part of the model"),
                             HasSubstr("try: checkpoint.strictness=log_all")));
  }
  EXPECT_THAT(error_of([&] {
                start(config({odd, "checkpoint.strictness=log_unexpected"}));
              }),
              AllOf(HasSubstr(lost + " is not in"), Not(HasSubstr("layers.7"))));
  std::map<std::string, at::Tensor> weights;
  const std::string log = log_of([&] {
    weights = start(config({odd, "checkpoint.strictness=log_all"}));
  });
  EXPECT_THAT(log,
              AllOf(HasSubstr(lost + " is not in the checkpoint"),
                    HasSubstr("layers.7.mlp.fc1.weight is not part"), HasSubstr("resumed from")));
  const auto initial = start(test::tiny(data, {}));
  for (const auto& [name, weight] : weights)
    EXPECT_TRUE(at::equal(weight, name == lost ? initial.at(name) : first.weights.at(name)))
        << name;
  EXPECT_THAT(error_of([&] {
                start(config({load, "checkpoint.finetune=true", "model.ffn_hidden_size=64",
                              "checkpoint.strictness=log_all"}));
              }),
              AllOf(HasSubstr("layers.0.mlp.fc1.weight is F32 [96, 32] in the checkpoint, but "
                              "Float [128, 32] in this run"),
                    HasSubstr("layers.1.mlp.fc2.weight is F32 [32, 48]"), Not(HasSubstr("try"))));
}

TEST_F(Loading, AutoGoesOnWithTheNewestGoodOneOrFromTheBeginning) {
  const std::string own = "checkpoint.load=auto";
  const test::Trace whole = test::run(config({"train.train_iters=4"}));
  fs::remove_all(scratch / "run");
  std::string log = log_of([&] {
    test::run(config(
        {own, "train.train_iters=4", "train.exit_interval=2", "checkpoint.save_interval=1"}));
  });
  EXPECT_THAT(log, HasSubstr("run contains no checkpoint: starting a new run"));
  fs::resize_file(step(2) / "model_00000_of_00001.safetensors", 300);
  test::Trace rest;
  log = log_of([&] { rest = test::run(config({own, "train.train_iters=4"})); });
  EXPECT_THAT(log, AllOf(HasSubstr("step_00000002: "), HasSubstr("instead"),
                         HasSubstr("step_00000001 at iteration 1")));
  EXPECT_EQ(rest.report.last_loss, whole.report.last_loss);
  for (const checkpoint::CheckpointFolder& folder : checkpoint::checkpoints_in(scratch / "run"))
    fs::remove(folder.path / "manifest.json");
  EXPECT_THAT(error_of([&] { test::run(config({own})); }),
              HasSubstr("contains no intact checkpoint"))
      << "and does not begin anew over it";
  EXPECT_THAT(error_of([&] { test::tiny(data, {own}); }),
              HasSubstr("checkpoint.load=auto loads from checkpoint.save, which is empty"));
  EXPECT_THAT(error_of([&] {
                config({own, "checkpoint.finetune=true"});
              }),
              HasSubstr("checkpoint.finetune=true starts a new run"));
}

TEST_F(Loading, ARepairIsToldForThePlaceWhereTheCheckpointIs) {
  const std::vector<std::string> keys = {"checkpoint.parity=1", "checkpoint.save_interval=1",
                                         "checkpoint.load=auto"};
  const auto with = [&](const char* iterations) {
    std::vector<std::string> all = keys;
    all.push_back(std::string("train.train_iters=") + iterations);
    return config(all);
  };
  test::run(with("2"));
  fs::resize_file(step(2) / "model_00000_of_00001.safetensors", 300);
  const std::string log = log_of([&] { test::run(with("3")); });
  const fs::path moved = fs::path(scratch / "run") / "earlier-1" / step(2).filename();
  EXPECT_THAT(log, AllOf(HasSubstr("\n  try: pentatron checkpoint repair " + moved.string()),
                         Not(HasSubstr("repair " + step(2).string()))));
  EXPECT_EQ(checkpoint::repair_checkpoint(moved).repaired.size(), 1u);
}

TEST_F(Loading, KeysOfWhatIsNotLoadedOrSavedAreRefused) {
  const auto told = [&](const std::vector<std::string>& keys) {
    return error_of([&] { test::tiny(data, keys); });
  };
  for (const auto& [key, off] : {std::pair{"finetune=true", "finetune=false"},
                                 {"load_optimizer=false", "load_optimizer=true"},
                                 {"check_tokenizer=false", "check_tokenizer=true"},
                                 {"strictness=log_all", "strictness=raise_all"}}) {
    const std::string set = std::string("checkpoint.") + key;
    EXPECT_THAT(told({set}), AllOf(HasSubstr(set + " has no effect without checkpoint.load"),
                                   HasSubstr(std::string("try: checkpoint.") + off)));
    test::tiny(data, {set, std::string("checkpoint.") + off});
    test::tiny(data, {set, "checkpoint.load=" + (scratch / "run")});
  }
  for (const char* key : {"save_interval=2", "export_hf=true", "keep_every=2", "parity=1"}) {
    const std::string set = std::string("checkpoint.") + key;
    EXPECT_THAT(told({set}), AllOf(HasSubstr(set + " has no effect without checkpoint.save"),
                                   HasSubstr("try: checkpoint.save=checkpoints")));
    test::tiny(data, {set, "checkpoint.save=checkpoints"});
  }
  EXPECT_THAT(told({"checkpoint.keep_best=2", "checkpoint.keep_best_metric=loss"}),
              HasSubstr("checkpoint.keep_best=2 has no effect without checkpoint.save"));
}

TEST_F(Loading, FineTuningTakesTheModelsKeysFromTheCheckpoint) {
  test::run(config({"model.layernorm_epsilon=1e-3", "model.hidden_dropout=0.1"}));
  const std::vector<std::string> tune = {load, "checkpoint.finetune=true", "dataset.path=" + data,
                                         "train.seq_length=16"};
  const auto tuned = [&](std::vector<std::string> more) {
    more.insert(more.begin(), tune.begin(), tune.end());
    return load_config(std::nullopt, more);
  };
  const Config plain = tuned({});
  EXPECT_EQ(plain.model.hidden_size, 32);
  EXPECT_EQ(plain.model.num_layers, 2);
  EXPECT_EQ(plain.model.layernorm_epsilon, 1e-3);
  EXPECT_EQ(plain.model.hidden_dropout, 0.1);
  EXPECT_EQ(tuned({"model.hidden_dropout=0"}).model.hidden_dropout, 0);
  EXPECT_THAT(error_of([&] { tuned({"model.type=bert"}); }),
              AllOf(HasSubstr("model.type=bert does not match checkpoint.load="),
                    HasSubstr("try: model.type=gpt")));
  EXPECT_THAT(error_of([&] {
                test::run(tuned({"model.num_layers=3", "train.num_threads=1"}));
              }),
              HasSubstr("layers.2.mlp.fc1.weight"));
  // A run that goes on has the configuration that it is given.
  EXPECT_EQ(load_config(std::nullopt, {load, "dataset.path=" + data}).model.hidden_size, 256);
  EXPECT_THAT(error_of([&] {
                load_config(std::nullopt, {"checkpoint.load=nothing", "checkpoint.finetune=true",
                                           "model.head=classification"});
              }),
              HasSubstr("checkpoint.load=nothing does not exist"));
}

// Its data, which the other type cannot read, come later.
TEST_F(Loading, AnotherTypeOfModelIsToldFirst) {
  test::run(config({"model.layernorm_epsilon=1e-3"}));
  const std::vector<std::string> other = {load, "model.type=t5", "model.num_layers=3",
                                          "dataset.type=batches", "dataset.path=missing"};
  const std::string error = error_of([&] { load_config(std::nullopt, other); });
  EXPECT_THAT(error, AllOf(HasSubstr(" contains a model of model.type=gpt, but the configuration "
                                     "has model.type=t5\n  try: model.type=gpt and "),
                           HasSubstr("or checkpoint.finetune=true")));
  std::vector<std::string> followed = {load, "dataset.path=" + data, "train.seq_length=16"};
  const size_t first = error.find("try: ") + 5, last = error.find(", or checkpoint");
  for (std::string left = error.substr(first, last - first); !left.empty();) {
    const size_t end = left.find(" and ");
    followed.push_back(left.substr(0, end));
    left = end == std::string::npos ? "" : left.substr(end + 5);
  }
  EXPECT_THAT(followed, Contains("model.num_layers=2"));
  EXPECT_THAT(followed, Contains("model.layernorm_epsilon=0.001"));
  const models::ModelConfig meant = load_config(std::nullopt, followed).model;
  EXPECT_EQ(meant.num_layers, 2);
  EXPECT_EQ(meant.hidden_size, 32);
  EXPECT_EQ(meant.layernorm_epsilon, 1e-3);
}

TEST_F(Loading, TheTypeOfDataIsThatOfTheModel) {
  using data::DatasetType;
  const auto type = [](const std::vector<std::string>& keys) {
    return load_config(std::nullopt, keys).dataset.type;
  };
  const std::string labelled = "dataset.path=" + data;
  EXPECT_EQ(type({}), DatasetType::kText);
  EXPECT_EQ(type({"model.type=bert"}), DatasetType::kBert);
  EXPECT_EQ(type({"model.type=t5"}), DatasetType::kT5);
  EXPECT_EQ(type({"model.type=bert", "model.head=classification", labelled}),
            DatasetType::kClassification);
  EXPECT_EQ(type({"model.type=bert", "model.head=regression", labelled}),
            DatasetType::kClassification);
  EXPECT_EQ(type({"model.type=bert", "dataset.type=batches"}), DatasetType::kBatches);
  EXPECT_EQ(type({"dataset.type=mock"}), DatasetType::kMock);
  EXPECT_THAT(
      error_of([&] {
        type({"model.type=t5", "dataset.type=text"});
      }),
      AllOf(
          HasSubstr("dataset.type=text does not provide the data that model.type=t5 is trained on"),
          HasSubstr("try: dataset.type=t5")));
  EXPECT_THAT(error_of([&] {
                type({"model.type=bert", "model.head=regression", labelled, "dataset.type=bert"});
              }),
              AllOf(HasSubstr("that model.type=bert with model.head=regression is trained on"),
                    HasSubstr("try: dataset.type=classification")));
}

TEST_F(Loading, MorePositionsThanALoadedModelHasAreNotSuggested) {
  const std::string gpt2 = "checkpoint.load=hf:" PENTATRON_TEST_DATA "/hf_tiny/gpt2";
  const std::string message = error_of([&] {
    load_config(std::nullopt, {gpt2, "dataset.type=mock", "train.seq_length=5000"});
  });
  EXPECT_THAT(message, AllOf(HasSubstr("train.seq_length=5000 is more than the "),
                             HasSubstr("try: train.seq_length=")));
  EXPECT_THAT(error_of([&] {
                load_config(std::nullopt, {"train.seq_length=5000",
                                           "model.position_embedding_type=learned_absolute"});
              }),
              HasSubstr("try: model.max_position_embeddings=5000"));
}

TEST_F(Loading, OtherSamplesAreTold) {
  test::run(config({}));
  test::write_documents(scratch / "other.jsonl", 100, /*seed=*/2);
  const std::string log = log_of([&] {
    start(config({load, "seed=5", "dataset.path=" + (scratch / "other.jsonl")}));
  });
  EXPECT_THAT(log, AllOf(HasSubstr("data settings have changed since"),
                         HasSubstr("seed=1234 instead of 5"), HasSubstr("dataset.path="),
                         Not(HasSubstr("training data has changed"))));
  EXPECT_THAT(log_of([&] { start(config({load})); }), Not(HasSubstr("data settings have changed")));
  const std::filesystem::path file = data;
  const std::string spelled = file.parent_path().string() + "/.//" + file.filename().string();
  EXPECT_THAT(log_of([&] {
                start(config({load, "dataset.path=" + spelled}));
              }),
              AllOf(Not(HasSubstr("settings have changed")), Not(HasSubstr("data has changed"))));
}

TEST_F(Loading, StateIsReadInAnotherTypeAndThatIsTold) {
  const std::string narrow = "optimizer.exp_avg_sq_dtype=bf16", iterations = "train.train_iters=4";
  test::run(config({"train.train_iters=3"}));
  test::Trace rest;
  EXPECT_THAT(log_of([&] {
                rest = test::run(config({load, narrow, iterations}));
              }),
              AllOf(HasSubstr("exp_avg_sq of the optimizer's state was saved in F32 and is kept in "
                              "BF16 now"),
                    Not(HasSubstr("exp_avg of the"))));
  EXPECT_EQ(rest.report.iterations, 4);
  EXPECT_THAT(log_of([&] {
                test::run(config({load, "train.train_iters=5"}));
              }),
              HasSubstr("was saved in BF16 and is kept in F32 now"));
}

/// FP8 holds the roots of mean squares, in a checkpoint too; another type goes on with the squares.
TEST_F(Loading, MeansGoOnInOtherTypes) {
  const auto run = [&](const std::string& name, std::vector<std::string> more) {
    more.insert(more.begin(), {"train.train_iters=5", "optimizer.adam_beta2=0.999",
                               "checkpoint.save_interval=1"});
    test::run(other_run(name, more));
  };
  const auto means = [&](const std::string& name, int64_t iteration) {
    checkpoint::CheckpointReader reader(fs::path(scratch / name) /
                                        checkpoint::step_name(iteration));
    std::map<std::string, at::Tensor> found;
    for (const auto& [name, info] : reader.manifest().tensors) {
      const bool squares = name.ends_with("/exp_avg_sq");
      if (!squares && !name.ends_with("/exp_avg")) continue;
      const std::vector<std::byte> bytes = reader.read(name);
      const at::Tensor stored = at::empty(info.shape, checkpoint::scalar_type(info.dtype));
      std::memcpy(stored.mutable_data_ptr(), bytes.data(), bytes.size());
      at::Tensor& value = found[name] = stored.to(at::kDouble);
      if (!optim::is_scaled(stored.scalar_type())) continue;
      const bool root = optim::stores_root(stored.scalar_type(), squares);
      const double bound = reader.manifest().state.at("state_bounds").at(name).get<double>();
      value /= optim::state_scale(bound, stored.scalar_type(), root);
      if (root) value.square_();
    }
    return found;
  };
  run("whole", {});
  for (const auto& [mean, square] : {std::pair("fp8", "fp16"), {"fp16", "fp8"}, {"bf16", "fp8"}}) {
    const std::string name = fmt::format("{}_{}", mean, square);
    SCOPED_TRACE(name);
    const std::string from = "checkpoint.load=" + (scratch / name);
    run(name, {"train.exit_interval=3"});
    run(name, {from, "train.exit_interval=4", fmt::format("optimizer.exp_avg_dtype={}", mean),
               fmt::format("optimizer.exp_avg_sq_dtype={}", square)});
    run(name, {from});
    for (const int64_t iteration : {4, 5}) {
      const auto exact = means("whole", iteration), own = means(name, iteration);
      ASSERT_EQ(own.size(), exact.size());
      for (const auto& [tensor, expected] : exact) {
        const double ratio = (own.at(tensor).abs().sum() / expected.abs().sum()).item<double>();
        EXPECT_NEAR(ratio, 1, 0.2) << tensor << " " << iteration;
      }
    }
  }
}

TEST_F(Loading, OtherContentOfTheSameFilesIsTold) {
  test::run(config({}));
  const auto resumed = [&] { return log_of([&] { start(config({load})); }); };
  EXPECT_THAT(resumed(), Not(HasSubstr("has changed")));
  const std::string text = content_of(data);
  std::string other = text;
  other[other.find("the")] = 'T';
  std::ofstream(data) << other;
  EXPECT_THAT(resumed(), AllOf(HasSubstr("warning: the training data has changed since " +
                                         step(3).string() + " was saved: "),
                               HasSubstr(data + " has the same size and other content")));
  const std::string log = log_of([&] { start(config({load, "seed=5"})); });
  EXPECT_THAT(log, AllOf(HasSubstr("data settings have changed"),
                         HasSubstr(data + " has the same size and other content")))
      << "another setting hides nothing";
  std::ofstream(data) << text << text;
  EXPECT_THAT(resumed(), HasSubstr(fmt::format("{} has {} bytes instead of {}", data,
                                               2 * text.size(), text.size())));
}

TEST_F(Loading, RetentionKeepsEveryNthAndTheBest) {
  const auto kept = [&](std::vector<std::string> more) {
    more.insert(more.end(), {"train.train_iters=8", "checkpoint.save_interval=1",
                             "checkpoint.keep=1", "train.eval_interval=2", "dataset.split=50,50"});
    fs::remove_all(scratch / "run");
    fs::remove_all(scratch / "log");
    const test::Trace trace = test::run(config(more));
    std::vector<int64_t> iterations;
    for (const checkpoint::CheckpointFolder& f : checkpoint::checkpoints_in(scratch / "run"))
      iterations.push_back(f.iteration);
    return std::pair(trace, iterations);
  };
  EXPECT_THAT(kept({"checkpoint.keep_every=3"}).second, testing::ElementsAre(8, 6, 3));
  // A rate of learning that spoils what was learned: the best is not the last.
  const std::vector<std::string> worse = {"optimizer.lr=0.3", "optimizer.min_lr=0.3",
                                          "checkpoint.keep_best=1"};
  const auto by_loss = [&] {
    auto more = worse;
    more.emplace_back("checkpoint.keep_best_metric=loss");
    return kept(more);
  }();
  int64_t best = 1;
  for (const Json& step : by_loss.first.steps) {
    if (step["loss"] < by_loss.first.steps[static_cast<size_t>(best - 1)]["loss"])
      best = step["iteration"];
  }
  std::vector<int64_t> expected = {8};
  if (best != 8) expected.push_back(best);
  EXPECT_EQ(by_loss.second, expected);
  for (const int64_t iteration : kept(worse).second)
    EXPECT_EQ(iteration % 2, 0) << "validated at even iterations only";
  EXPECT_TRUE(checkpoint::read_manifest(step(8)).state.contains("validation_loss"));
  EXPECT_THAT(error_of([&] { config({"checkpoint.keep_best=1"}); }),
              HasSubstr("train.eval_interval=0 turns evaluation off"));
}

TEST_F(Loading, TheTokenizerLiesInTheCheckpointAndAnotherOneIsRefused) {
  const fs::path all = fs::path(PENTATRON_TEST_DATA) / "tokenizers";
  const auto make = [&](const char* name, const char* from) {
    fs::create_directories(scratch / name);
    fs::copy_file(all / from, fs::path(scratch / name) / "tokenizer.json");
    return "tokenizer.path=" + (scratch / name);
  };
  const std::string gpt2 = make("gpt2", "gpt2.json");
  std::ofstream(fs::path(scratch / "gpt2") / "tokenizer_config.json")
      << R"({"eos_token": "<|endoftext|>"})";
  std::ofstream(fs::path(scratch / "gpt2") / "private.txt") << "not the tokenizer's";
  const std::string eod = "tokenizer.eod=<|endoftext|>";
  const std::vector<std::string> vocab = {"model.vocab_size=1024", eod};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), vocab.begin(), vocab.end());
    return config(more);
  };
  test::run(with({gpt2}));
  const checkpoint::CheckpointReader reader(step(3));
  EXPECT_EQ(reader.attachments().size(), 4u)
      << "the tokenizer's two, kernels.json and data_files.json";
  EXPECT_THAT(reader.manifest().tokenizer, testing::StartsWith("sha256:"));
  const auto stored = data::make_tokenizer({.path = (step(3) / "tokenizer").string()});
  const auto original = data::make_tokenizer({.path = scratch / "gpt2"});
  std::vector<int32_t> a, b;
  stored->encode("the loss falls", a);
  original->encode("the loss falls", b);
  EXPECT_EQ(a, b);
  // The same file elsewhere is the same tokenizer.
  const std::string moved = make("moved", "gpt2.json");
  start(with({load, moved}));
  start(with({load, moved + "/tokenizer.json"}));
  const std::string other = make("other", "gpt4o.json");
  EXPECT_THAT(error_of([&] {
                start(with({load, other}));
              }),
              AllOf(HasSubstr("was trained with a different tokenizer (sha256:"),
                    HasSubstr("checkpoint.check_tokenizer=false")));
  EXPECT_THAT(error_of([&] {
                start(config({load, "model.vocab_size=1024", "tokenizer.type=bytes"}));
              }),
              HasSubstr("instead of bytes"));
  // Where none is named it is the checkpoint's own, and so is the vocabulary where no size is
  // given.
  EXPECT_EQ(config({load}).tokenizer.path, scratch / "gpt2");
  fs::remove_all(scratch / "gpt2"); // then that in the checkpoint
  const Config own = config({load});
  EXPECT_EQ(own.tokenizer.path, step(3) / "tokenizer");
  EXPECT_EQ(own.tokenizer.eod, "<|endoftext|>");
  EXPECT_THAT(log_of([&] {
                start(config({load, "model.vocab_size=1024"}));
              }),
              AllOf(HasSubstr("from " + (step(3) / "tokenizer").string()),
                    Not(HasSubstr("data settings have changed"))));
  start(with({load, other, "checkpoint.check_tokenizer=false"}));
}

} // namespace
} // namespace pentatron::trainer
