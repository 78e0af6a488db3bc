// Pipelines train what one rank trains where sends wait and operations of a group run in order, as
// on GPUs.
#include <gtest/gtest.h>

#include "tests/trainer/layout_runs.h"

namespace pentatron::trainer {
namespace {

using test::Layout;

/// CI takes one or two of each schedule.
std::vector<Layout> pipelines() {
  std::vector<Layout> chosen;
  for (const Layout& layout : test::layouts()) {
    const bool small = layout.in_ci && layout.ranks <= 4 && layout.name.starts_with("pp");
    if (layout.keys.find("pipeline_model_parallel_size") != std::string::npos &&
        (small || test::full_matrix()))
      chosen.push_back(layout);
  }
  return chosen;
}

void run_in_stream_order(int ranks, const std::function<void(comm::Group)>& body) {
  comm::run_ranks(ranks,
                  {.threads_per_rank = 1, .timeout_s = 60, .heartbeat_s = 1, .stream_order = true},
                  body);
}

class LayoutStreams : public testing::TestWithParam<Layout> {
 public:
  void SetUp() override { test::set_run_ranks(run_in_stream_order, true); }
  void TearDown() override { test::set_run_ranks({}, true); }
};

TEST_P(LayoutStreams, TrainWhatOneRankTrains) {
  const std::string type = " dtype=fp64";
  const test::Trained run =
      test::train_layout(GetParam().work, GetParam().ranks, GetParam().keys + type);
  expect_same_training(run, test::one_rank(GetParam().work, type), test::bounds_of("fp64"));
}

INSTANTIATE_TEST_SUITE_P(Layouts, LayoutStreams, testing::ValuesIn(pipelines()),
                         [](const auto& info) { return info.param.name; });

} // namespace
} // namespace pentatron::trainer
