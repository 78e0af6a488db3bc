#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "pentatron/base/error.h"
#include "pentatron/trainer/metrics/tensorboard.h"
#include "tests/support/files.h"

namespace pentatron::trainer {
namespace {

namespace fs = std::filesystem;

std::pair<int, std::string> output_of(const std::string& command) {
  std::FILE* pipe = ::popen(command.c_str(), "r");
  std::string text;
  std::array<char, 4096> buffer{};
  while (const size_t n = std::fread(buffer.data(), 1, buffer.size(), pipe))
    text.append(buffer.data(), n);
  return {::pclose(pipe), text};
}

/// A Python that has the tensorboard package: of the project's own environment, else of the path;
/// empty if none has.
std::string python() {
  const fs::path own = fs::path(PENTATRON_TEST_DATA) / "../../.deps/venv/bin/python";
  for (const std::string& program : {own.string(), std::string("python3")}) {
    if (output_of(program + " -c 'import tensorboard' 2>/dev/null").first == 0) return program;
  }
  return {};
}

class TensorBoard : public ::testing::Test {
 protected:
  nlohmann::json read() {
    const auto [status, text] =
        output_of(python() + " '" + PENTATRON_TEST_DATA + "/../trainer/read_events.py' '" +
                  folder.string() + "' 2>/dev/null");
    EXPECT_EQ(status, 0);
    return nlohmann::json::parse(text, nullptr, false);
  }
  const TemporaryFolder temporary;
  const fs::path folder = temporary.path();
};

TEST_F(TensorBoard, ReadsScalarsAndTextsBack) {
  if (python().empty())
    GTEST_SKIP() << "no Python with the package tensorboard: pip install tensorboard";
  {
    TensorBoardWriter writer(folder);
    for (int i = 1; i <= 300; ++i) writer.scalar("lm loss", i, 10.0 / i);
    writer.scalar("lm loss", 301, std::nan(""));
    writer.scalar("large step", int64_t{1} << 40, -0.5);
    writer.text("config", 0, "# configuration\n\n`a: 1` · é");
    writer.text("empty", 7, "");
  }
  const auto got = read();
  const auto& loss = got["scalars"]["lm loss"];
  ASSERT_EQ(loss.size(), 301u);
  for (int i = 1; i <= 300; ++i) {
    EXPECT_EQ(loss[static_cast<size_t>(i - 1)][0], i);
    EXPECT_EQ(loss[static_cast<size_t>(i - 1)][1].get<double>(), static_cast<float>(10.0 / i));
  }
  EXPECT_TRUE(loss[300][1].is_null()) << "NaN";
  EXPECT_EQ(got["scalars"]["large step"][0][0], int64_t{1} << 40);
  EXPECT_EQ(got["texts"]["config"][0][1], "# configuration\n\n`a: 1` · é");
  EXPECT_EQ(got["plugins"]["config"], "text");
}

TEST_F(TensorBoard, ReadsHistogramsBack) {
  if (python().empty())
    GTEST_SKIP() << "no Python with the package tensorboard: pip install tensorboard";
  {
    TensorBoardWriter writer(folder);
    writer.histogram(
        "experts-load/layers.0.mlp", 7,
        {.largest = 2, .histogram = {1, 0, 1, 0, 0, 1, 1, 0}, .choices = {8, 0, 6, 2}});
  }
  const auto got = read()["histograms"]["experts-load/layers.0.mlp"][0];
  EXPECT_EQ(got[0], 7);
  EXPECT_EQ(got[1], 0.0);
  EXPECT_EQ(got[2], 2.0);
  EXPECT_EQ(got[3], 4.0);
  EXPECT_EQ(got[4], nlohmann::json({0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 4.0, 5.0}));
  EXPECT_EQ(got[5], nlohmann::json({1.0, 0.0, 1.0, 0.0, 0.0, 1.0, 1.0, 0.0}));
}

TEST_F(TensorBoard, GetsMegatronsNames) {
  if (python().empty())
    GTEST_SKIP() << "no Python with the package tensorboard: pip install tensorboard";
  TrainLog log;
  log.iteration = 3;
  log.consumed_samples = 96;
  log.learning_rate = 0.25;
  log.global_batch_size = 32;
  log.losses = {{"lm loss", 4.5}, {"load_balancing_loss", 1.0}};
  log.loss_scale = 1.0;
  log.grad_norm = 0.5;
  log.num_zeros = 7;
  log.params_norm = 9.0;
  log.step_time_s = 0.125;
  log.tflops = 2.0;
  log.memory_bytes = 1024;
  log.world_size = 2;
  {
    TensorBoardWriter writer(folder);
    writer.training(log);
    writer.evaluation("lm loss", "validation", 3, 96, 2.0);
  }
  const auto scalars = read()["scalars"];
  for (const auto& [tag, value] : {std::pair{"learning-rate", 0.25},
                                   {"batch-size", 32.0},
                                   {"lm loss", 4.5},
                                   {"load_balancing_loss", 1.0},
                                   {"loss-scale", 1.0},
                                   {"world-size", 2.0},
                                   {"grad-norm", 0.5},
                                   {"num-zeros", 7.0},
                                   {"params-norm", 9.0},
                                   {"iteration-time", 0.125},
                                   {"throughput", 2.0}}) {
    ASSERT_TRUE(scalars.contains(tag)) << tag;
    EXPECT_EQ(scalars[tag], nlohmann::json::array({{3, value}})) << tag;
    EXPECT_EQ(scalars[std::string(tag) + " vs samples"], nlohmann::json::array({{96, value}}))
        << tag;
  }
  EXPECT_EQ(scalars["mem-allocated-bytes"][0][1], 1024.0);
  EXPECT_EQ(scalars["lm loss validation"][0][1], 2.0);
  EXPECT_EQ(scalars["lm loss validation ppl"][0][1].get<double>(),
            static_cast<float>(std::exp(2.0)));
  EXPECT_EQ(scalars["lm loss validation vs samples"][0][0], 96);
}

TEST_F(TensorBoard, AResumedRunReplacesTheStepsAfterItsStart) {
  if (python().empty())
    GTEST_SKIP() << "no Python with the package tensorboard: pip install tensorboard";
  {
    TensorBoardWriter writer(folder);
    for (int i = 1; i <= 10; ++i) writer.scalar("lm loss", i, 1.0);
  }
  {
    TensorBoardWriter writer(folder, 6);
    for (int i = 7; i <= 8; ++i) writer.scalar("lm loss", i, 2.0);
  }
  const auto loss = read()["scalars"]["lm loss"];
  ASSERT_EQ(loss.size(), 8u);
  for (size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(loss[i][0], i + 1);
    EXPECT_EQ(loss[i][1], i < 6 ? 1.0 : 2.0);
  }
}

} // namespace
} // namespace pentatron::trainer
