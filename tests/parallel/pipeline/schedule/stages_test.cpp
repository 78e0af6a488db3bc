// Stages of a model: every segment exactly once, whichever way they are asked for.
#include "pentatron/parallel/pipeline/schedule/stages.h"

#include "pentatron/base/error.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace pentatron::pipeline {
namespace {

using Ranges = std::vector<SegmentRange>;

/// Embedding, layers, head: E, t, L.
std::vector<StageSegment> decoder_segments(int64_t num_layers) {
  std::vector<StageSegment> segments = {{"embedding", 'E', false}};
  for (int64_t i = 0; i < num_layers; ++i)
    segments.push_back({fmt::format("layer {}", i), 't', true});
  segments.push_back({"head", 'L', false});
  return segments;
}

std::string error_of(const StageOptions& options) {
  try {
    assign_stages(options);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(Stages, LayersAreDealtOutEvenlyAndTheFirstGetOneMore) {
  EXPECT_EQ(assign_stages({.segments = decoder_segments(6), .rank_of_stage = {0, 1, 2, 3}}),
            (Ranges{{0, 3}, {3, 5}, {5, 6}, {6, 8}}));
}

TEST(Stages, EveryWayTilesTheModel) {
  for (int64_t layers = 1; layers < 20; ++layers) {
    for (int stages = 1; stages <= 8; ++stages) {
      StageOptions options{.segments = decoder_segments(layers)};
      for (int s = 0; s < stages; ++s) options.rank_of_stage.push_back(s);
      std::vector<StageOptions> ways(4, options);
      ways[1].count_embedding = ways[1].count_loss = true;
      ways[2].count_loss = true;
      for (int64_t i = 0; i < layers + 2; ++i) ways[3].costs.push_back(1.0 + (i * 7) % 5);
      for (const StageOptions& way : ways) {
        Ranges ranges;
        try {
          ranges = assign_stages(way);
        } catch (const ConfigError&) {
          EXPECT_GT(stages, layers);
          continue;
        }
        ASSERT_EQ(std::ssize(ranges), stages);
        int64_t at = 0;
        for (const SegmentRange& range : ranges) {
          EXPECT_EQ(range.begin, at);
          EXPECT_LE(range.begin, range.end);
          at = range.end;
        }
        EXPECT_EQ(at, layers + 2);
      }
    }
  }
}

TEST(Stages, EmbeddingAndLossCountAsLayers) {
  EXPECT_EQ(assign_stages({.segments = decoder_segments(6),
                           .rank_of_stage = {0, 1, 2, 3},
                           .count_embedding = true,
                           .count_loss = true}),
            (Ranges{{0, 2}, {2, 4}, {4, 6}, {6, 8}}));
}

TEST(Stages, FirstAndLastRankAreDividedOverTheirStages) {
  // Two stages a rank, interleaved: the first rank's 4 layers are 2 and 2.
  EXPECT_EQ(assign_stages({.segments = decoder_segments(10),
                           .rank_of_stage = {0, 1, 0, 1},
                           .first_rank_layers = 4}),
            (Ranges{{0, 3}, {3, 6}, {6, 8}, {8, 12}}));
  EXPECT_NE(
      error_of(
          {.segments = decoder_segments(10), .rank_of_stage = {0, 1, 2}, .first_rank_layers = 3})
          .find("leave 7 layers, which "),
      std::string::npos);
  EXPECT_NE(
      error_of(
          {.segments = decoder_segments(6), .rank_of_stage = {0, 1, 0, 1}, .first_rank_layers = 3})
          .find("cannot be divided evenly among its 2 stages"),
      std::string::npos);
}

TEST(Stages, LayoutsAreMegatrons) {
  EXPECT_EQ(assign_stages({.segments = decoder_segments(7),
                           .rank_of_stage = {0, 1, 0, 1},
                           .layout = "Et*2|(tt|)*2tL"}),
            (Ranges{{0, 3}, {3, 5}, {5, 7}, {7, 9}}));
  EXPECT_EQ(
      assign_stages(
          {.segments = decoder_segments(2), .rank_of_stage = {0, 1, 2, 3}, .layout = "E|,t t||L"}),
      (Ranges{{0, 1}, {1, 3}, {3, 3}, {3, 4}}));
}

TEST(Stages, CostsMakeTheDearestStageCheap) {
  // The head is worth three layers.
  EXPECT_EQ(assign_stages({.segments = decoder_segments(6),
                           .rank_of_stage = {0, 1, 2},
                           .costs = {0, 1, 1, 1, 1, 1, 1, 3}}),
            (Ranges{{0, 4}, {4, 7}, {7, 8}}));
}

TEST(Stages, WrongLayoutsSayWhatIsWrong) {
  const auto with = [](const std::string& layout) {
    return error_of({.segments = decoder_segments(2), .rank_of_stage = {0, 1}, .layout = layout});
  };
  EXPECT_NE(with("Et|tL|").find("3 stages, but the pipeline has 2"), std::string::npos);
  EXPECT_NE(with("Et|L").find("1 layers t"), std::string::npos);
  EXPECT_NE(with("tE|tL").find("in another order"), std::string::npos);
  EXPECT_NE(with("E(t|tL").find("without a ')'"), std::string::npos);
  EXPECT_NE(with("Et)|tL").find("without a '('"), std::string::npos);
  EXPECT_NE(with("Et*|tL").find("without a number"), std::string::npos);
  EXPECT_NE(with("Et|tmL").find("multi-token"), std::string::npos);
  EXPECT_NE(with("Etx|tL").find("'x'"), std::string::npos);
  EXPECT_NE(with("E(((t*999)*999)*999)*999L").find("more than"), std::string::npos);
  EXPECT_NE(with("((((((((((t))))))))))").find("too deep"), std::string::npos);
}

TEST(Stages, MoreStagesThanLayersIsAnError) {
  EXPECT_NE(error_of({.segments = decoder_segments(2), .rank_of_stage = {0, 1, 2}})
                .find("model.num_layers=3 or parallel.pipeline_model_parallel_size=2"),
            std::string::npos);
}

TEST(Stages, TheMapNamesEveryStage) {
  EXPECT_EQ(describe_stages({{0, 1}, {1, 1}, {1, 4}, {4, 6}}, {0, 1, 1, 0}, decoder_segments(4)),
            "stage 0 on rank 0: embedding\nstage 1 on rank 1: nothing\nstage 2 on rank 1: layers "
            "0-2\nstage 3 on rank 0: layer 3, head");
}

/// Two kinds of layers with segments between them, as an encoder-decoder has.
std::vector<StageSegment> two_kinds() {
  return {{"embedding", 'E', false},      {"encoder layer 0", 't', true},
          {"encoder layer 1", 't', true}, {"decoder embedding", 'D', false},
          {"decoder layer 0", 't', true}, {"head", 'L', false}};
}

TEST(Stages, ASegmentBetweenLayersLiesWithTheLayerBehindIt) {
  EXPECT_EQ(assign_stages({.segments = two_kinds(), .rank_of_stage = {0, 1}}),
            (Ranges{{0, 3}, {3, 6}}));
  EXPECT_EQ(assign_stages({.segments = two_kinds(), .rank_of_stage = {0, 1, 2}}),
            (Ranges{{0, 2}, {2, 3}, {3, 6}}));
  EXPECT_EQ(assign_stages({.segments = two_kinds(), .rank_of_stage = {0, 1}, .layout = "EttD|tL"}),
            (Ranges{{0, 4}, {4, 6}}));
  EXPECT_NE(error_of({.segments = two_kinds(), .rank_of_stage = {0, 1}, .layout = "Ett|tL"})
                .find("layout=\"Et*2|DtL\""),
            std::string::npos);
  EXPECT_EQ(describe_stages({{0, 3}, {3, 6}}, {0, 1}, two_kinds()),
            "stage 0 on rank 0: embedding, encoder layers 0-1\nstage 1 on rank 1: decoder "
            "embedding, decoder layer 0, head");
}

} // namespace
} // namespace pentatron::pipeline
