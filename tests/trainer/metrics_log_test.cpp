#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <regex>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "pentatron/base/error.h"
#include "pentatron/trainer/metrics/metrics_file.h"
#include "pentatron/trainer/metrics/train_log.h"
#include "tests/support/files.h"

namespace pentatron::trainer {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

TrainLog example() {
  TrainLog log;
  log.time =
      std::chrono::system_clock::time_point(std::chrono::microseconds(1'700'000'000'123'456));
  log.iteration = 10;
  log.train_iters = 1000;
  log.consumed_samples = 320;
  log.step_time_s = 0.12345;
  log.tflops = 0.25;
  log.learning_rate = 3e-4;
  log.global_batch_size = 32;
  log.losses = {{"lm loss", 10.37833}};
  log.loss_scale = 1.0;
  log.grad_norm = 1.2345;
  log.nan_iterations = 2;
  return log;
}

class Folder : public ::testing::Test {
 protected:
  const TemporaryFolder temporary;
  const std::filesystem::path folder = temporary.path();
};

TEST(TrainLine, HasMegatronsFieldsInItsOrderAndShapes) {
  const std::string line = train_line(example());
  // The shape in Megatron-LM's training_log(), as one pattern.
  const std::regex shape(
      R"( \[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6}\] iteration +\d+/ +\d+ \| consumed samples: +\d+ \| elapsed time per iteration \(ms\): \d+\.\d \| throughput per GPU \(TFLOP/s/GPU\): \d+\.\d \| learning rate: \d\.\d{6}E[+-]\d\d \| global batch size: +\d+ \| lm loss: \d\.\d{6}E[+-]\d\d \| loss scale: \d+\.\d \| grad norm: \d+\.\d{3} \| number of skipped iterations: +\d+ \| number of nan iterations: +\d+ \|.*)");
  EXPECT_TRUE(std::regex_match(line, shape)) << line;
  EXPECT_THAT(line, HasSubstr("] iteration       10/    1000 | consumed samples:          320 | "
                              "elapsed time per iteration (ms): 123.5 |"));
  EXPECT_THAT(line, HasSubstr(" learning rate: 3.000000E-04 | global batch size:    32 | lm loss: "
                              "1.037833E+01 | loss scale: 1.0 | grad norm: 1.234 |"));
  EXPECT_THAT(line,
              HasSubstr(" number of skipped iterations:   0 | number of nan iterations:   2 |"));
  EXPECT_THAT(line, HasSubstr(".123456]"));
}

TEST(TrainLine, AlwaysShowsTheLoss) {
  TrainLog log = example();
  for (const auto& [value, text] :
       {std::pair{std::nan(""), "lm loss: NAN |"}, std::pair{-2.5, "lm loss: -2.500000E+00 |"},
        std::pair{std::numeric_limits<double>::infinity(), "lm loss: INF |"},
        std::pair{0.0, "lm loss: 0.000000E+00 |"}}) {
    log.losses[0].second = value;
    EXPECT_THAT(train_line(log), HasSubstr(text));
  }
}

TEST(TrainLine, ShowsNoLossWhereThereIsNone) {
  TrainLog log = example();
  log.losses.clear();
  EXPECT_THAT(train_line(log), Not(HasSubstr("lm loss")));
  const auto json = nlohmann::json::parse(metrics_line(log));
  EXPECT_TRUE(json.at("loss").is_null());
}

TEST(TrainLine, ShowsOurFieldsBehindMegatrons) {
  TrainLog log = example();
  log.tokens_per_s = 54321.9;
  log.mfu = 0.4321;
  log.hfu = 0.5;
  log.memory_bytes = 1'234'567'890;
  log.data_wait = 0.015;
  log.eta_s = 3723;
  EXPECT_THAT(
      train_line(log),
      EndsWith(
          "| number of nan iterations:   2 | tokens/s: 54321.9 | GFLOP/s: 250.0 | MFU: 43.2% | "
          "HFU: 50.0% | memory: 1.23 GB | data wait: 1.5% | ETA: 1:02:03 |"));
}

TEST(CompactLine, ShowsWhatIsKnown) {
  TrainLog log = example();
  log.nan_iterations = 0;
  log.tokens_per_s = 12'345;
  log.mfu = 0.4123;
  log.memory_bytes = 1'288'490'189;
  log.eta_s = 200;
  EXPECT_EQ(compact_line(log),
            "iteration   10/1000 | loss 10.3783 | grad norm 1.23 | lr 3.00e-04 | 12.3k tokens/s | "
            "MFU 41.2% | 1.2 GiB | ETA 3m20s");
  log.losses.clear();
  EXPECT_THAT(compact_line(log), HasSubstr("| no targets |"));
}

TEST(CompactLine, ShowsTroubleOnlyWhereThereIsSome) {
  TrainLog log = example();
  log.nan_iterations = 0;
  for (const char* word : {"scale", "skipped", "nan", "waits"})
    EXPECT_THAT(compact_line(log), Not(HasSubstr(word)));
  log.loss_scale = 65536;
  log.skipped_iterations = 3;
  log.nan_iterations = 2;
  log.data_wait = 0.25;
  EXPECT_THAT(compact_line(log),
              HasSubstr("| scale 65536 | skipped 3 | nan 2 | waits for data 25%"));
}

TEST(CompactLine, NeverExceedsItsWidth) {
  TrainLog log = example();
  log.iteration = log.train_iters = 123'456'789;
  log.losses = {{"lm loss", -123456.789}, {"load_balancing_loss", 1e-9}};
  log.grad_norm = 123456.7;
  log.learning_rate = 1.5e-300;
  log.tokens_per_s = 123'456'789.0;
  log.mfu = 1.2345;
  log.memory_bytes = int64_t{1000} << 30;
  log.eta_s = 99 * 86400.0;
  log.loss_scale = 4294967296.0;
  log.skipped_iterations = log.nan_iterations = 123'456;
  log.data_wait = 1;
  const std::string line = compact_line(log);
  EXPECT_LE(line.size(), 120u) << line;
  for (const char* part : {"loss -1.235e+05", "skipped 123456", "nan 123456", "grad norm 1.23e+05"})
    EXPECT_THAT(line, HasSubstr(part));
  EXPECT_LE(compact_line(log, 80).size(), 80u);
  EXPECT_EQ(compact_line(example(), 45), "iteration   10/1000 | loss 10.3783 | nan 2");
  log.losses = {{"lm loss", std::nan("")}};
  EXPECT_THAT(compact_line(log), HasSubstr("| loss nan |"));
}

TEST(CompactLine, OfAnEvaluation) {
  EXPECT_EQ(compact_evaluation(100, 1000, 2.0),
            "iteration  100/1000 | validation loss 2.0000 | perplexity 7.389");
  const double nan = std::nan("");
  EXPECT_EQ(compact_evaluation(100, 1000, 2.0, {{"pearson", nan}, {"spearman", 0.5}}),
            "iteration  100/1000 | validation loss 2.0000 | pearson undefined | spearman 0.5000");
  EXPECT_THAT(compact_evaluation(100, 1000, nan, {{"lm_loss", nan}}), HasSubstr("| lm loss nan"));
}

TEST(EvaluationBox, FramesLossAndPerplexity) {
  const std::string box = evaluation_box("validation loss at iteration 100", "lm loss", 2.0);
  const std::string line = " validation loss at iteration 100 | lm loss value: 2.000000E+00 | lm "
                           "loss PPL: 7.389056E+00 | ";
  const std::string rule(line.size() + 1, '-');
  EXPECT_EQ(box, rule + "\n" + line + "\n" + rule);
  EXPECT_EQ(perplexity(50.0), std::exp(20.0));
  EXPECT_TRUE(std::isnan(perplexity(std::nan(""))));
}

TEST(Texts, ClocksBytesAndExactNumbers) {
  EXPECT_EQ(clock_text(7), "0:00:07");
  EXPECT_EQ(clock_text(45296), "12:34:56");
  EXPECT_EQ(clock_text(3 * 86400 + 4 * 3600 + 5 * 60 + 6), "3d 04:05:06");
  EXPECT_EQ(clock_text(INFINITY), "?");
  EXPECT_EQ(clock_text(-1), "?");
  EXPECT_EQ(short_duration(7), "7.0s");
  EXPECT_EQ(short_duration(200), "3m20s");
  EXPECT_EQ(short_duration(3723), "1h02m");
  EXPECT_EQ(short_duration(3 * 86400 + 4 * 3600), "3d04h");
  EXPECT_EQ(short_duration(NAN), "?");
  EXPECT_EQ(rate_text(999), "999");
  EXPECT_EQ(rate_text(5.25), "5.25");
  EXPECT_EQ(rate_text(12'345), "12.3k");
  EXPECT_EQ(rate_text(999'999), "1.00M");
  EXPECT_EQ(bytes_text(512), "512 B");
  EXPECT_EQ(bytes_text(1.5e9), "1.50 GB");
  for (const double v : {0.1, 1.0 / 3, 3e-4, 1e-300, 5e-324, 1.7976931348623157e308,
                         123456789.123456789, -0.0, 2.0}) {
    EXPECT_EQ(std::strtod(exact_text(v).c_str(), nullptr), v);
  }
  EXPECT_EQ(exact_text(0.1), "0.1");
  EXPECT_EQ(exact_text(std::nan("")), "NaN");
  EXPECT_EQ(json_text(std::nan("")), "null");
  EXPECT_EQ(json_text(0.25), "0.25");
}

TEST(MetricsLine, IsJsonThatKeepsEveryDigit) {
  TrainLog log = example();
  log.losses = {{"lm loss", 1.0 / 3}, {"load_balancing_loss", 0.1}, {"mtp_1 loss", 2.5}};
  log.grad_norm = std::nextafter(1.0, 2.0);
  log.learning_rate = 2e-3 / 7;
  log.tokens_per_s = 1234.5;
  log.mfu = 0.41;
  log.hfu = 0.5;
  log.memory_bytes = int64_t{1} << 53;
  log.consumed_tokens = 5120;
  const auto json = nlohmann::json::parse(metrics_line(log));
  EXPECT_EQ(json["iteration"], 10);
  EXPECT_EQ(json["loss"].get<double>(), 1.0 / 3);
  EXPECT_EQ(json["load_balancing_loss"].get<double>(), 0.1);
  EXPECT_EQ(json["mtp_1_loss"].get<double>(), 2.5);
  EXPECT_EQ(json["grad_norm"].get<double>(), std::nextafter(1.0, 2.0));
  EXPECT_EQ(json["learning_rate"].get<double>(), 2e-3 / 7);
  EXPECT_EQ(json["consumed_samples"], 320);
  EXPECT_EQ(json["consumed_tokens"], 5120);
  EXPECT_EQ(json["global_batch_size"], 32);
  EXPECT_EQ(json["step_time_s"].get<double>(), 0.12345);
  EXPECT_EQ(json["tokens_per_s"], 1234.5);
  EXPECT_EQ(json["tflops"], 0.25);
  EXPECT_EQ(json["mfu"], 0.41);
  EXPECT_EQ(json["hfu"], 0.5);
  EXPECT_EQ(json["memory_bytes"], int64_t{1} << 53);
  EXPECT_EQ(json["skipped"], false);
  EXPECT_EQ(json["nan"], true); // nan_iterations is 2
  log.nan_iterations = 0;
  EXPECT_EQ(nlohmann::json::parse(metrics_line(log))["nan"], false);
  log.losses[0].second = std::nan("");
  const auto broken = nlohmann::json::parse(metrics_line(log));
  EXPECT_TRUE(broken["loss"].is_null());
  EXPECT_EQ(broken["nan"], true);
}

class MetricsFiles : public Folder {
 protected:
  void write(int64_t resumed, int64_t first, int64_t last, double loss) {
    MetricsFile file(folder / "metrics.jsonl", resumed);
    TrainLog log = example();
    for (int64_t i = first; i <= last; ++i) {
      log.iteration = i;
      log.losses[0].second = loss;
      file.write(log);
    }
  }
  std::vector<std::pair<int64_t, double>> read() {
    std::ifstream in(folder / "metrics.jsonl");
    std::vector<std::pair<int64_t, double>> out;
    for (std::string line; std::getline(in, line);) {
      const auto json = nlohmann::json::parse(line);
      out.emplace_back(json["iteration"].get<int64_t>(), json["loss"].get<double>());
    }
    return out;
  }
};

TEST_F(MetricsFiles, AResumedRunReplacesWhatLiesAfterItsStart) {
  write(0, 1, 10, 1.0);
  write(6, 7, 8, 2.0);
  const auto lines = read();
  ASSERT_EQ(lines.size(), 8u);
  for (size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(lines[i].first, static_cast<int64_t>(i) + 1);
    EXPECT_EQ(lines[i].second, i < 6 ? 1.0 : 2.0);
  }
  write(0, 1, 2, 3.0);
  EXPECT_EQ(read().size(), 2u);
}

TEST_F(MetricsFiles, AnEvaluationIsALineOfItsOwn) {
  const auto json =
      nlohmann::json::parse(evaluation_line(7, 1.0 / 3, {{"lm_accuracy", 0.25}}, 14, 224));
  EXPECT_EQ(json, (nlohmann::json{{"iteration", 7},
                                  {"validation_loss", 1.0 / 3},
                                  {"validation_lm_accuracy", 0.25},
                                  {"consumed_samples", 14},
                                  {"consumed_tokens", 224}}));
  write(0, 1, 4, 1.0);
  {
    MetricsFile file(folder / "metrics.jsonl", 4);
    file.write(evaluation_line(4, 2.0, {}, 8, 128));
    TrainLog log = example();
    log.iteration = 5;
    file.write(log);
  }
  const auto lines = [&] {
    const std::string text = content_of(folder / "metrics.jsonl");
    return std::count(text.begin(), text.end(), '\n');
  };
  EXPECT_EQ(lines(), 6);
  { MetricsFile(folder / "metrics.jsonl", 4).flush(); }
  EXPECT_EQ(lines(), 5) << "a resumed run keeps the evaluation of its first state";
  { MetricsFile(folder / "metrics.jsonl", 3).flush(); }
  EXPECT_EQ(lines(), 3);
}

TEST_F(MetricsFiles, ALineCutOffByACrashIsRemoved) {
  write(0, 1, 5, 1.0);
  const std::string whole = content_of(folder / "metrics.jsonl");
  for (const size_t cut : {1u, 2u, 30u}) {
    std::ofstream(folder / "metrics.jsonl", std::ios::binary)
        << whole.substr(0, whole.size() - cut);
    write(5, 6, 6, 2.0);
    const auto lines = read();
    ASSERT_EQ(lines.size(), 5u) << cut;
    EXPECT_EQ(lines[3].first, 4);
    EXPECT_EQ(lines[4].first, 6);
  }
}

TEST_F(MetricsFiles, ADamagedLineStaysWithItsNeighbors) {
  write(0, 1, 6, 1.0);
  std::string text = content_of(folder / "metrics.jsonl");
  const size_t second = text.find('\n') + 1;
  text[second] = '#';
  std::ofstream(folder / "metrics.jsonl", std::ios::binary) << text;
  { MetricsFile(folder / "metrics.jsonl", 5).flush(); }
  const std::string kept = content_of(folder / "metrics.jsonl");
  EXPECT_EQ(std::count(kept.begin(), kept.end(), '\n'), 5);
  EXPECT_TRUE(text.starts_with(kept)) << "its content is what it was";
}

TEST_F(MetricsFiles, WhatCannotBeWrittenWaits) {
  std::filesystem::create_directories(folder / "later");
  std::filesystem::rename(folder / "later", folder / "away");
  MetricsFile file(folder / "later" / "metrics.jsonl", 0);
  TrainLog log = example();
  for (log.iteration = 1; log.iteration <= 3; ++log.iteration)
    EXPECT_THROW(file.write(log), DataError);
  std::filesystem::rename(folder / "away", folder / "later");
  file.write(log);
  std::ifstream in(folder / "later" / "metrics.jsonl");
  std::string line;
  for (int64_t i = 1; i <= 4; ++i) {
    ASSERT_TRUE(std::getline(in, line));
    EXPECT_EQ(nlohmann::json::parse(line)["iteration"], i);
  }
  EXPECT_EQ(file.lost(), 0);
}

} // namespace
} // namespace pentatron::trainer
