// Offline runs of W&B and MLflow, read back by a reader of its own; tests/peers/trackers.py reads
// them with the real packages.
#include <array>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pentatron/base/error.h"
#include "pentatron/base/json.h"
#include "pentatron/trainer/metrics/mlflow.h"
#include "pentatron/trainer/metrics/wandb.h"
#include "tests/trainer/tiny_run.h"

namespace pentatron::trainer {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::SizeIs;

Json read_tracker(const std::string& kind, const fs::path& path) {
  const std::string command = std::string("python3 '") + PENTATRON_TEST_DATA +
                              "/../trainer/read_trackers.py' " + kind + " '" + path.string() +
                              "' 2>&1";
  std::FILE* pipe = ::popen(command.c_str(), "r");
  std::string text;
  std::array<char, 4096> buffer{};
  while (const size_t n = std::fread(buffer.data(), 1, buffer.size(), pipe))
    text.append(buffer.data(), n);
  EXPECT_EQ(::pclose(pipe), 0) << text;
  return Json::parse(text, nullptr, /*allow_exceptions=*/false);
}

TrackedRun tracked_example(int64_t resumed = 0) {
  return {.id = "0123abcd",
          .name = "my: \"run\"",
          .group = "a project",
          .config = {{"model.num_layers", 24},
                     {"model.rope.theta", 1e4},
                     {"dataset.path", "a b"},
                     {"seed", 7}},
          .resumed_iteration = resumed};
}

fs::path only_entry(const fs::path& folder) {
  std::vector<fs::path> all;
  for (const auto& entry : fs::directory_iterator(folder)) all.push_back(entry.path());
  EXPECT_THAT(all, SizeIs(1));
  return all.at(0);
}

class Trackers : public testing::Test {
 protected:
  const TemporaryFolder temporary_;
  const fs::path folder = temporary_.path();
};

TEST_F(Trackers, WandbReadsEveryRecordAcrossBlocks) {
  fs::path file;
  constexpr int kSteps = 2000; // some ten blocks
  {
    WandbWriter writer(folder, tracked_example());
    file = writer.path();
    for (int i = 1; i <= kSteps; ++i)
      // Records of many lengths, so that headers and parts fall on every place of a block.
      writer.log(i, {{"loss", 10.0 / i}, {std::string(static_cast<size_t>(i % 97) + 1, 'x'), i}});
    writer.log(kSteps + 1, {{"loss", std::nan("")}, {std::string(100'000, 'y'), 1}});
    writer.finish(1);
  }
  EXPECT_THAT(file.string(), HasSubstr("/wandb/offline-run-"));
  EXPECT_THAT(file.string(), testing::EndsWith("-0123abcd/run-0123abcd.wandb"));
  const Json got = read_tracker("wandb", file);
  EXPECT_EQ(got["run"]["id"], "0123abcd");
  EXPECT_EQ(got["run"]["project"], "a project");
  EXPECT_EQ(got["run"]["name"], "my: \"run\"");
  EXPECT_EQ(got["run"]["config"]["model"]["num_layers"], 24);
  EXPECT_EQ(got["run"]["config"]["model"]["rope"]["theta"], 1e4);
  EXPECT_EQ(got["run"]["config"]["seed"], 7);
  ASSERT_EQ(got["history"].size(), size_t{kSteps} + 1);
  for (int i = 1; i <= kSteps; ++i) {
    const Json& row = got["history"][static_cast<size_t>(i) - 1];
    ASSERT_EQ(row["loss"].get<double>(), 10.0 / i);
    ASSERT_EQ(row["_step"], i);
    ASSERT_EQ(row["step"], i);
  }
  EXPECT_EQ(got["history"].back()["loss"], "NaN");
  EXPECT_EQ(got["summary"]["_step"], kSteps + 1);
  EXPECT_EQ(got["exit_code"], 1);
  for (size_t i = 0; i < got["numbers"].size(); ++i) ASSERT_EQ(got["numbers"][i], i + 1);
}

TEST_F(Trackers, WandbContinuesAResumedRunUnderItsId) {
  { WandbWriter(folder, tracked_example()).log(1, {{"loss", 1}}); }
  const WandbWriter second(folder, tracked_example(4));
  EXPECT_EQ(second.path().filename(), "run-0123abcd.wandb");
  const Json got = read_tracker("wandb", second.path());
  EXPECT_EQ(got["run"]["starting_step"], 5);
}

TEST_F(Trackers, WandbLeavesNothingWhereItCannotWrite) {
  std::ofstream(folder / "wandb") << "a file";
  EXPECT_THROW(WandbWriter(folder, tracked_example()), DataError);
  EXPECT_EQ(content_of(folder / "wandb"), "a file");
}

TEST_F(Trackers, MlflowContinuesAResumedRun) {
  const auto metrics = [&](const char* name) {
    return read_tracker("mlflow", folder)["a project"]["runs"][0]["metrics"][name];
  };
  {
    MlflowWriter writer(folder, tracked_example());
    for (int i = 1; i <= 4; ++i) writer.log(i, {{"loss", 1.0 / i}, {"odd/name", i}});
    writer.log(4, {{"validation_loss", std::nan("")}});
    writer.finish(MlflowWriter::End::kKilled);
  }
  Json got = read_tracker("mlflow", folder)["a project"];
  EXPECT_EQ(got["id"], got["folder"]);
  EXPECT_THAT(got["id"].get<std::string>(), SizeIs(18));
  ASSERT_EQ(got["runs"].size(), 1u);
  const Json first = got["runs"][0];
  EXPECT_EQ(first["meta"]["status"], "5");
  EXPECT_NE(first["meta"]["end_time"], "null");
  EXPECT_EQ(first["params"]["model.num_layers"], "24");
  EXPECT_EQ(first["params"]["dataset.path"], "a b");
  EXPECT_EQ(first["tags"]["mlflow.runName"], "my: \"run\"");
  EXPECT_EQ(metrics("loss"), Json::parse("[[1.0,1],[0.5,2],[0.3333333333333333,3],[0.25,4]]"));
  EXPECT_EQ(metrics("validation_loss"), Json::parse("[[null,4]]"));
  {
    MlflowWriter writer(folder, tracked_example(2));
    writer.log(3, {{"loss", 7}});
  }
  EXPECT_EQ(metrics("loss"), Json::parse("[[1.0,1],[0.5,2],[7.0,3]]"));
  const fs::path run = MlflowWriter(folder, tracked_example(3)).path();
  const std::string earlier = content_of(run / "artifacts/earlier-1/loss");
  EXPECT_EQ(std::count(earlier.begin(), earlier.end(), '\n'), 4) << "what was cut is kept";
  EXPECT_TRUE(fs::exists(run / "artifacts/earlier-1/validation_loss"));
  EXPECT_FALSE(fs::exists(run / "artifacts/earlier-2")) << "nothing was cut";
  got = read_tracker("mlflow", folder)["a project"];
  ASSERT_EQ(got["runs"].size(), 1u);
  EXPECT_EQ(got["runs"][0]["meta"]["status"], "1") << "running";
  EXPECT_EQ(got["runs"][0]["meta"]["start_time"], first["meta"]["start_time"]);
}

TEST_F(Trackers, MlflowTellsWhatItCannotWrite) {
  { const MlflowWriter writer(folder, tracked_example()); }
  std::filesystem::path parameter;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder))
    if (entry.path().parent_path().filename() == "params") parameter = entry.path();
  ASSERT_FALSE(parameter.empty());
  std::filesystem::remove(parameter);
  std::filesystem::create_directory(parameter);
  try {
    const MlflowWriter writer(folder, tracked_example(2));
    FAIL() << "no error";
  } catch (const DataError& error) {
    EXPECT_THAT(error.what(), HasSubstr(parameter.filename().string() + " cannot be written"));
  }
}

TEST_F(Trackers, MlflowFindsAnExperimentOfMlflow) {
  fs::create_directories(folder / "449084706269580274");
  std::ofstream(folder / "449084706269580274/meta.yaml")
      << "artifact_location: file:///tmp\nexperiment_id: '449084706269580274'\n"
         "lifecycle_stage: active\nname: a project\n";
  const MlflowWriter writer(folder, tracked_example());
  EXPECT_EQ(writer.path().parent_path().filename(), "449084706269580274");
}

TEST_F(Trackers, ARunWritesBothAndResumesThem) {
  const test::Scratch scratch;
  const std::string data = test::write_documents(scratch / "data.jsonl", 100);
  const std::vector<std::string> keys = {"logger.dir=" + (scratch / "log"),
                                         "logger.wandb_project=tests",
                                         "logger.mlflow_experiment=tests",
                                         "logger.run_name=first",
                                         "checkpoint.save=" + (scratch / "ck"),
                                         "checkpoint.load=auto",
                                         "train.eval_interval=2",
                                         "dataset.split=50,50"};
  const auto run = [&](const std::string& iterations) {
    std::vector<std::string> all = keys;
    all.push_back("train.train_iters=" + iterations);
    return test::run(test::tiny(data, all));
  };
  const test::Trace trace = run("2");
  const fs::path wandb = only_entry(scratch.path / "log/wandb");
  const std::string id = read_json(scratch.path / "log/run.json")["id"];
  const Json offline = read_tracker("wandb", wandb / ("run-" + id + ".wandb"));
  EXPECT_EQ(offline["run"]["name"], "first");
  EXPECT_EQ(offline["run"]["config"]["train"]["train_iters"], 2);
  ASSERT_EQ(offline["history"].size(), 3u) << "two steps and an evaluation";
  EXPECT_EQ(offline["history"][0]["loss"], trace.steps[0]["loss"]);
  EXPECT_EQ(offline["history"][2]["validation_loss"], trace.report.validation.value().loss);
  EXPECT_EQ(offline["exit_code"], 0);
  run("4");
  EXPECT_EQ(read_json(scratch.path / "log/run.json")["id"], id);
  const Json stored = read_tracker("mlflow", scratch.path / "log/mlruns")["tests"];
  ASSERT_EQ(stored["runs"].size(), 1u);
  EXPECT_EQ(stored["runs"][0]["metrics"]["loss"].size(), 4u);
  EXPECT_EQ(stored["runs"][0]["meta"]["status"], "3");
}

TEST(LoggerKeys, ThatHaveNoEffectAloneAreRefused) {
  for (const auto& [key, needed] :
       {std::pair{"logger.wandb_project=a", "logger.dir=runs/mine"},
        std::pair{"logger.mlflow_experiment=a", "logger.dir=runs/mine"},
        std::pair{"logger.mlflow_dir=a", "logger.mlflow_experiment=mine"}}) {
    std::vector<std::string> keys = {key};
    if (keys[0].find("mlflow_dir") != std::string::npos) keys.emplace_back("logger.dir=b");
    EXPECT_THAT([&] { load_config(std::nullopt, keys); },
                testing::ThrowsMessage<ConfigError>(
                    testing::AllOf(HasSubstr(std::string(key) + " has no effect without"),
                                   HasSubstr(std::string("try: ") + needed))));
    keys.emplace_back(needed);
    EXPECT_NO_THROW(load_config(std::nullopt, keys));
  }
}

} // namespace
} // namespace pentatron::trainer
