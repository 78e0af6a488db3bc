// The trace of a run: its file parses, and shows all that every rank did, in order.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "pentatron/parallel/pipeline/schedule/schedule.h"
#include "pentatron/trainer/metrics/chrome_trace.h"
#include "tests/support/quiet_log.h"
#include "tests/support/ranks.h"
#include "tests/trainer/layout_runs.h"

namespace pentatron::trainer {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::UnorderedElementsAreArray;

constexpr double kRounding_us = 1e-3;

/// Trains on ranks and returns the trace's events.
std::vector<Json> trace_of(int ranks, const std::string& keys, const test::Scratch& scratch) {
  const test::QuietLog quiet;
  test::write_documents(scratch / "documents.jsonl", 400);
  const Config config = test::layout_config(
      "gpt2", "train.train_iters=3 train.eval_interval=0 profiling.trace=true " + keys, ranks,
      scratch);
  if (ranks == 1) {
    test::run(config);
  } else {
    test::run_ranks(ranks, [&](const comm::Group& world) { Trainer(config, world).run(); });
  }
  const Json file = read_json(scratch / "logs/trace.json");
  return file.at("traceEvents").get<std::vector<Json>>();
}

std::vector<std::string> names(const std::vector<Json>& events, int rank, const char* category) {
  std::vector<std::string> found;
  for (const Json& event : events)
    if (event["ph"] == "X" && event["pid"] == rank && event["cat"] == category)
      found.push_back(event["name"]);
  return found;
}

void expect_lanes_in_order(const std::vector<Json>& events) {
  std::map<std::pair<int, int>, double> end_of_lane;
  double first = 1;
  for (const Json& event : events) {
    if (event["ph"] != "X") continue;
    const double start = event["ts"], duration = event["dur"];
    double& end = end_of_lane[{event["pid"], event["tid"]}];
    EXPECT_GE(start, end - kRounding_us) << event.dump();
    EXPECT_GE(duration, 0) << event.dump();
    end = start + duration;
    first = std::min(first, start);
  }
  EXPECT_EQ(first, 0);
}

TEST(Trace, ShowsThePassesAndCommunicationOfAllRanks) {
  const test::Scratch scratch;
  const std::vector<Json> events =
      trace_of(4,
               "parallel.tensor_model_parallel_size=2 parallel.pipeline_model_parallel_size=2 "
               "parallel.pipeline_schedule=zb_h1 profiling.trace_start=2",
               scratch);
  expect_lanes_in_order(events);
  std::vector<std::string> passes[2]; // of two iterations
  for (int stage = 0; stage < 2; ++stage)
    for (int microbatch = 0; microbatch < 8; ++microbatch)
      for (int iteration = 0; iteration < 2; ++iteration)
        for (const char kind : {'F', 'I', 'W'})
          passes[stage].push_back(fmt::format("{}{}{}", stage, kind, microbatch));
  for (int rank = 0; rank < 4; ++rank) {
    const int stage = rank / 2; // tensor ranks are neighbours
    EXPECT_THAT(names(events, rank, "iteration"), ElementsAre("iteration 2", "iteration 3"));
    std::vector<std::string> seen;
    for (const char* kind : {"forward", "input gradient", "weight gradient", "backward"})
      for (const std::string& name : names(events, rank, kind)) seen.push_back(name);
    EXPECT_THAT(seen, UnorderedElementsAreArray(passes[stage]));
    for (const char* phase : {"data", "optimizer", "reduce gradients", "loss and norm"})
      EXPECT_EQ(std::ranges::count(names(events, rank, "phase"), phase), 2) << phase;
    const std::vector<std::string> communication = names(events, rank, "communication");
    const auto sends = [](const std::string& name) {
      return name.starts_with("pp-channel-") && name.find(" send to ") != std::string::npos;
    };
    EXPECT_EQ(std::ranges::count_if(communication, sends), 16) << "every microbatch is handed on";
    EXPECT_GT(std::ranges::count(communication, "tp all_reduce"), 0);
    EXPECT_FALSE(names(events, rank, "wait").empty());
  }
  std::ifstream svg(scratch / "logs/pipeline.svg");
  const std::string picture(std::istreambuf_iterator<char>(svg), {});
  EXPECT_THAT(picture, HasSubstr("zb_h1, iteration 3, measured"));
  EXPECT_THAT(picture, HasSubstr("rank 1"));
}

TEST(Trace, ShowsPairsOfPassesThatTakeTurns) {
  const test::Scratch scratch;
  const std::vector<Json> events =
      trace_of(2,
               "model.num_moe_experts=4 parallel.expert_model_parallel_size=2 "
               "comm_overlap.moe_expert_parallel=true parallel.pipeline_schedule=dualpipe_v",
               scratch);
  expect_lanes_in_order(events);
  for (int rank = 0; rank < 2; ++rank) {
    // Four microbatches in two stages on one rank.
    EXPECT_THAT(names(events, rank, "forward and backward"),
                ElementsAre("1F1+0B0", "0F2+1B1", "1F2+0B1", "0F3+1B2", "1F3+0B2"));
  }
}

TEST(Trace, OfOneRankHasNoCommunication) {
  const test::Scratch scratch;
  const std::vector<Json> events = trace_of(1, "", scratch);
  expect_lanes_in_order(events);
  EXPECT_THAT(names(events, 0, "iteration"), ElementsAre("iteration 3"));
  EXPECT_EQ(names(events, 0, "forward").size(), 8u);
  EXPECT_TRUE(names(events, 0, "communication").empty());
  EXPECT_FALSE(std::filesystem::exists(scratch / "logs/pipeline.svg"));
}

TEST(Trace, DealsOverlappingSlicesOutToLanes) {
  const auto lanes = without_overlap(
      "x", {{"d", "", 5, 6}, {"a", "", 0, 3}, {"b", "", 1, 2}, {"c", "", 3, 5}, {"e", "", 4, 9}});
  ASSERT_EQ(lanes.size(), 2u);
  const auto text = [](const TraceLane& lane) {
    std::string names = lane.name + ":";
    for (const TraceSlice& slice : lane.slices) names += " " + slice.name;
    return names;
  };
  EXPECT_EQ(text(lanes[0]), "x: a c d");
  EXPECT_EQ(text(lanes[1]), "x 2: b e");
}

TEST(Trace, NeedsAFolderAndIterations) {
  const test::Scratch scratch;
  const auto refused = [&](const std::vector<std::string>& keys) {
    return test::error_of([&] { test::tiny(scratch / "data.jsonl", keys); });
  };
  EXPECT_THAT(refused({"profiling.trace=true"}), HasSubstr("logger.dir"));
  EXPECT_THAT(refused({"profiling.trace=true", "logger.dir=x", "profiling.trace_start=4"}),
              HasSubstr("after the last iteration of the run, 3"));
}

} // namespace
} // namespace pentatron::trainer
