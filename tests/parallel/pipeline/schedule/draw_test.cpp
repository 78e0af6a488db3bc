#include "pentatron/parallel/pipeline/schedule/draw.h"

#include <cmath>

#include <gmock/gmock.h>

#include "pentatron/base/error.h"

namespace pentatron::pipeline {
namespace {

using testing::HasSubstr;
using testing::Not;

int occurrences(const std::string& text, const std::string& what) {
  int count = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++count;
  return count;
}

Timeline timeline(const char* name, int p, int m) {
  return simulate(make_schedule(name, p, 0, m), {.stages = {{1, 1, 1}}});
}

TEST(Draw, HasABoxForEveryPass) {
  const std::string svg = draw_svg(timeline("dualpipe_v", 2, 6));
  // 2 ranks x 2 stages x 6 microbatches x (F and B, or F, I and W); here 6 of 24 are halved.
  int passes = 0;
  for (const auto& row : timeline("dualpipe_v", 2, 6).rows) {
    for (const Interval& interval : row) passes += Passes(interval.action).size();
  }
  EXPECT_EQ(occurrences(svg, "stroke=\"white\""), passes);
  EXPECT_EQ(occurrences(svg, "font-size=\"10\""), passes); // all are wide enough for their number
}

TEST(Draw, ShowsIdleSharesLegendAndAxis) {
  const std::string svg = draw_svg(timeline("1f1b", 4, 4), {.title = "a < b & c", .unit = "ms"});
  EXPECT_EQ(occurrences(svg, ">42.9 %<"), 4); // 3 / 7
  EXPECT_THAT(svg, HasSubstr("F forward"));
  EXPECT_THAT(svg, HasSubstr("B backward"));
  EXPECT_THAT(svg, Not(HasSubstr("W weight")));
  EXPECT_THAT(svg, HasSubstr("a &lt; b &amp; c"));
  EXPECT_THAT(svg, HasSubstr("time in ms"));
  EXPECT_THAT(svg, HasSubstr(">20<"));
}

TEST(Draw, TakesMeasuredTimesThatBeginAnywhere) {
  Timeline measured{.name = "measured", .rows = {}};
  measured.rows.push_back(
      {{forward(0, 0), 1e9 + 1, 1e9 + 2},
       {{.kind = ActionKind::kSend, .stage = 0, .microbatch = 0, .peer = 1}, 1e9 + 2, 1e9 + 2.1}});
  measured.rows.push_back({{forward(1, 0), 1e9 + 2.1, 1e9 + 3}});
  const std::string svg = draw_svg(measured);
  EXPECT_THAT(svg, HasSubstr("communication"));
  EXPECT_THAT(svg, HasSubstr(">50.0 %<")); // sending is no computation
  EXPECT_EQ(occurrences(svg, "<rect"), occurrences(svg, "/>") - occurrences(svg, "<line"));
}

TEST(Draw, TakesEmptyTimelinesAndRefusesBadOnes) {
  EXPECT_THAT(draw_svg({}), HasSubstr("</svg>"));
  Timeline bad;
  bad.rows.push_back({{forward(0, 0), 0, std::nan("")}});
  EXPECT_THROW(draw_svg(bad), ConfigError);
  EXPECT_THROW(draw_svg({}, {.width = 10}), ConfigError);
}

} // namespace
} // namespace pentatron::pipeline
