// Timelines of several ranks.
#include <gtest/gtest.h>

#include "pentatron/parallel/pipeline/measured.h"
#include "tests/support/ranks.h"

namespace pentatron::pipeline {
namespace {

TEST(Measured, TimelineHasTheRowOfEveryRankUnchanged) {
  test::run_ranks(3, [](const comm::Group& world) {
    const auto row_of = [](int rank) {
      const double start = rank + 1.0 / 3;
      std::vector<Interval> row;
      for (int i = 0; i < rank; ++i) row.push_back({backward_input(rank, i), start + i, start + 7});
      row.push_back({overlap(2, 3, 4, 5), start, 1e9 + 1e-7});
      row.push_back({{.kind = ActionKind::kSend,
                      .stage = 1,
                      .microbatch = 2,
                      .peer = rank,
                      .payload = Payload::kGradient},
                     0,
                     1e-9});
      return row;
    };
    const Timeline timeline = gather_timeline("x", row_of(world.rank()), world);
    EXPECT_EQ(timeline.name, "x");
    ASSERT_EQ(timeline.rows.size(), 3u);
    for (int rank = 0; rank < 3; ++rank) {
      const std::vector<Interval> expected = row_of(rank);
      ASSERT_EQ(timeline.rows[rank].size(), expected.size());
      for (size_t i = 0; i < expected.size(); ++i) {
        EXPECT_EQ(timeline.rows[rank][i].action, expected[i].action);
        EXPECT_EQ(timeline.rows[rank][i].start, expected[i].start);
        EXPECT_EQ(timeline.rows[rank][i].end, expected[i].end);
      }
    }
  });
}

} // namespace
} // namespace pentatron::pipeline
