#include <algorithm>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <string>

#include <gtest/gtest.h>

#include "pentatron/base/error.h"
#include "pentatron/trainer/run_identity.h"
#include "pentatron/trainer/run_summary.h"
#include "tests/trainer/tiny_run.h"

namespace pentatron::trainer {
namespace {

namespace fs = std::filesystem;

class RunJson : public testing::Test {
 protected:
  Config config(std::vector<std::string> more) const {
    more.insert(more.end(), {"logger.dir=" + (scratch / "log")});
    return test::tiny(data, more);
  }
  Json summary() const { return read_json(scratch.path / "log/run.json"); }

  const test::Scratch scratch;
  const std::string data = test::write_documents(scratch / "data.jsonl", 200);
};

TEST_F(RunJson, SumsUpAFinishedRun) {
  const test::Trace trace =
      test::run(config({"train.train_iters=4", "train.eval_interval=2", "dataset.split=50,50"}));
  const Json s = summary();
  EXPECT_EQ(s["exit_reason"], "finished");
  EXPECT_EQ(s["name"], "log");
  EXPECT_EQ(s["iteration"], 4);
  EXPECT_EQ(s["total_iterations"], 4);
  EXPECT_EQ(s["consumed_samples"], 16);
  EXPECT_EQ(s["consumed_tokens"], 256);
  EXPECT_EQ(s["ranks"], 1);
  EXPECT_EQ(s["layout"], "tp=1 cp=1 pp=1 dp=1");
  EXPECT_EQ(s["device"], "cpu");
  EXPECT_TRUE(s["torch"].is_string());
  EXPECT_TRUE(s["ended"].is_string());
  double best = 1e9, seconds = 0;
  for (const Json& step : trace.steps) {
    best = std::min(best, step["loss"].get<double>());
    seconds += step["step_time_s"].get<double>();
  }
  EXPECT_EQ(s["best_loss"]["value"].get<double>(), best);
  EXPECT_EQ(s["last_loss"]["value"], trace.steps.back()["loss"]);
  EXPECT_EQ(s["last_loss"]["iteration"], 4);
  EXPECT_NEAR(s["training_seconds"].get<double>(), seconds, 1e-9);
  EXPECT_NEAR(s["tokens_per_second"].get<double>(), 256 / seconds, 1e-3 * 256 / seconds);
  const auto evaluations = test::read_metrics(scratch / "log/metrics.jsonl", /*evaluations=*/true);
  ASSERT_EQ(evaluations.size(), 2u);
  EXPECT_EQ(evaluations[0]["iteration"], 2);
  EXPECT_EQ(evaluations[1]["consumed_samples"], 16);
  EXPECT_FALSE(evaluations[1].contains("loss"));
  EXPECT_EQ(s["last_validation_loss"]["value"], evaluations[1]["validation_loss"]);
  EXPECT_EQ(evaluations[1]["validation_loss"].get<double>(), trace.report.validation.value().loss);
}

TEST_F(RunJson, AddsUpTheStartsOfARun) {
  const std::string save = "checkpoint.save=" + (scratch / "ck");
  test::run(config({"train.train_iters=2", save}));
  const Json first = summary();
  const test::Trace trace =
      test::run(config({"train.train_iters=5", save, "checkpoint.load=auto", "optimizer.lr=5e-3"}));
  const Json second = summary();
  EXPECT_EQ(second["id"], first["id"]);
  EXPECT_EQ(second["resumed_iteration"], 2);
  EXPECT_EQ(second["consumed_tokens"], 5 * 64);
  EXPECT_NE(second["config_hash"], first["config_hash"]);
  double seconds = 0, best = 1e9;
  for (const Json& step : trace.steps) {
    seconds += step["step_time_s"].get<double>();
    best = std::min(best, step["loss"].get<double>());
  }
  EXPECT_NEAR(second["training_seconds"].get<double>(), seconds, 1e-9);
  EXPECT_EQ(second["best_loss"]["value"].get<double>(), best);
}

TEST_F(RunJson, TheHashIsOfTheTrainingAlone) {
  test::run(config({}));
  const Json here = summary();
  fs::remove_all(scratch.path / "log");
  test::run(config({"checkpoint.save=" + (scratch / "ck"), "logger.log_interval=3"}));
  EXPECT_EQ(summary()["config_hash"], here["config_hash"]);
  EXPECT_NE(summary()["id"], here["id"]);
}

TEST_F(RunJson, TheHashIsOfTheKeysThatChangeTheTraining) {
  const auto hash = [&](std::vector<std::string> keys) {
    return hash_of_config(config(std::move(keys)), "");
  };
  const std::string plain = hash({});
  for (const char* key : {"profiling.trace=true", "dist.timeout_s=700", "train.num_threads=2",
                          "dataset.num_workers=2", "dataset.prefetch=5", "logger.log_interval=3"})
    EXPECT_EQ(hash({key}), plain) << key;
  for (const char* key : {"optimizer.lr=5e-3", "model.num_layers=3", "dataset.seed=5", "seed=5",
                          "dtype=fp64", "train.global_batch_size=8"})
    EXPECT_NE(hash({key}), plain) << key;
  Config other = config({});
  other.eval.interval = 7;
  other.offload.activations = true;
  EXPECT_EQ(hash_of_config(other, ""), plain);
  other.checkpoint.load_optimizer = false;
  EXPECT_NE(hash_of_config(other, ""), plain);
  other = config({});
  other.checkpoint.strictness = checkpoint::Strictness::kLogAll;
  EXPECT_NE(hash_of_config(other, ""), plain);
  other = config({});
  other.peft.load = "adapter"; // whose weights the run begins with
  EXPECT_NE(hash_of_config(other, ""), plain);
  EXPECT_NE(hash_of_config(config({}), "model"), plain);
}

TEST_F(RunJson, TheHashIsOfTheFirstWeightsToo) {
  const auto at = [&](const std::string& name, std::vector<std::string> keys) {
    keys.insert(keys.begin(), {"checkpoint.save=" + (scratch / (name + "_ck")),
                               "logger.dir=" + (scratch / name)});
    test::run(test::tiny(data, keys));
    return read_json(scratch.path / name / "run.json");
  };
  const Json one = at("one", {"train.train_iters=3"});
  EXPECT_TRUE(one["started_from"].is_null());
  const std::string load = "checkpoint.load=" + (scratch / "one_ck");
  const Json tuned = at("tuned", {load, "checkpoint.finetune=true", "train.train_iters=2"});
  EXPECT_EQ(tuned["started_from"], (scratch / "one_ck/step_00000003"));
  const Json plain = at("plain", {"train.train_iters=2"});
  EXPECT_NE(tuned["config_hash"], plain["config_hash"]);
  // Resuming is no other beginning, however often, and wherever the run writes.
  EXPECT_EQ(at("plain", {"checkpoint.load=auto", "train.train_iters=3"})["config_hash"],
            one["config_hash"]);
  for (const char* name : {"tuned", "tuned_again"}) {
    const Json resumed =
        at(name, {"checkpoint.load=" + (scratch / "tuned_ck"),
                  "checkpoint.save=" + (scratch / "tuned_ck"),
                  name == std::string("tuned") ? "train.train_iters=3" : "train.train_iters=4"});
    EXPECT_EQ(resumed["started_from"], tuned["started_from"]);
  }
}

TEST_F(RunJson, TellsWhyARunEnded) {
  const auto reason = [&] {
    const std::string text = summary()["exit_reason"];
    fs::remove_all(scratch.path / "log");
    return text;
  };
  test::run(config({"train.exit_interval=2"}));
  EXPECT_EQ(reason(), "exit_interval");
  test::run(config({"train.train_iters=100000", "train.exit_duration_in_mins=0.005"}));
  EXPECT_EQ(reason(), "exit_duration");
  install_signal_handlers();
  std::raise(SIGTERM);
  test::run(config({}));
  EXPECT_EQ(reason(), "signal SIGTERM");
  install_signal_handlers(); // forgets it
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
  std::signal(SIGHUP, SIG_DFL);
  Trainer broken(config({}));
  broken.model().model.params().find("final_norm.weight").value().fill_(std::nan(""));
  EXPECT_THROW(broken.run(), Error);
  EXPECT_EQ(summary()["exit_reason"].get<std::string>().substr(0, 7), "error: ");
}

TEST(RunSummaryJson, OfARunThatGoesOn) {
  RunSummary s;
  s.name = "a \"name\"";
  s.add_loss(1, 3);
  s.add_loss(2, std::nan(""));
  s.add_loss(3, 4);
  const Json json = parse_json(run_summary_json(s), "run.json");
  EXPECT_EQ(json["exit_reason"], "running");
  EXPECT_TRUE(json["ended"].is_null());
  EXPECT_TRUE(json["best_validation_loss"].is_null());
  EXPECT_EQ(json["best_loss"], (Json{{"iteration", 1}, {"value", 3.0}}));
  EXPECT_EQ(json["last_loss"], (Json{{"iteration", 3}, {"value", 4.0}}));
}

TEST(RunSummaryJson, AnIdThatIsNoneIsNotTaken) {
  const TemporaryFolder folder;
  const fs::path file = folder.path() / "run.json";
  EXPECT_EQ(earlier_run_id(file), "");
  for (const char* text :
       {"{", "[]", R"({"id": 5})", R"({"id": "../../etc"})", R"({"id": "0123ABCD"})"}) {
    std::ofstream(file) << text;
    EXPECT_EQ(earlier_run_id(file), "") << text;
  }
  std::ofstream(file) << R"({"id": "0123abcd"})";
  EXPECT_EQ(earlier_run_id(file), "0123abcd");
  EXPECT_NE(new_run_id(), new_run_id());
}

} // namespace
} // namespace pentatron::trainer
