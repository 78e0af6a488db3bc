#include <cmath>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pentatron/plot/loss_plot.h"

namespace pentatron::plot {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

LossPlot example(int points) {
  LossPlot plot{.title = "a <run> & its loss"};
  for (int i = 1; i <= points; ++i)
    plot.training.push_back(
        {static_cast<double>(i), 1.5 + 4.0 / std::sqrt(i) + 0.1 * std::sin(i * 12.9)});
  for (int i = 50; i <= points; i += 50)
    plot.validation.push_back({static_cast<double>(i), 1.6 + 4.0 / std::sqrt(i)});
  plot.reference = 3.0;
  return plot;
}

/// All pairs of a class's polylines.
std::vector<PlotPoint> points_of(const std::string& svg, const std::string& style) {
  std::vector<PlotPoint> out;
  const std::string begin = "<polyline class=\"" + style + "\" points=\"";
  for (size_t at = svg.find(begin); at != std::string::npos; at = svg.find(begin, at)) {
    at += begin.size();
    std::istringstream list(svg.substr(at, svg.find('"', at) - at));
    PlotPoint point;
    for (char comma = 0; list >> point.x >> comma >> point.y;) out.push_back(point);
  }
  return out;
}

TEST(Ticks, AreRoundAndCoverTheRange) {
  EXPECT_THAT(ticks(0, 10, 5), ElementsAre(0, 2, 4, 6, 8, 10));
  EXPECT_THAT(ticks(1.3, 5.6, 5), ElementsAre(1, 2, 3, 4, 5, 6));
  for (const auto& [low, high] :
       {std::pair{0.0, 1.0}, {-3.7, 12.2}, {1e-5, 1.7e-5}, {2.0, 1e9}, {5.4, 5.5}}) {
    const std::vector<double> t = ticks(low, high, 6);
    EXPECT_LE(t.front(), low + 1e-12);
    EXPECT_GE(t.back(), high - 1e-12 * high);
    EXPECT_LE(t.size(), 10u);
    EXPECT_GE(t.size(), 3u);
  }
}

TEST(Smoothed, KeepsAConstantAndHasNoBiasAtTheStart) {
  std::vector<PlotPoint> constant;
  for (int i = 0; i < 20; ++i) constant.push_back({static_cast<double>(i), 2.5});
  constant[5].y = std::nan("");
  const std::vector<PlotPoint> out = smoothed(constant, 10);
  EXPECT_EQ(out.size(), 19u);
  for (const PlotPoint& p : out) EXPECT_NEAR(p.y, 2.5, 1e-12);
  EXPECT_EQ(smoothed({{1, 8}, {2, 4}}, 3)[0].y, 8);
}

TEST(LossSvg, DrawsEverythingInsideThePictureInTheRightOrder) {
  const std::string svg = loss_svg(example(500));
  EXPECT_THAT(svg, HasSubstr("<svg xmlns"));
  EXPECT_THAT(svg, HasSubstr("a &lt;run&gt; &amp; its loss"));
  EXPECT_THAT(svg, HasSubstr("unigram entropy 3.000"));
  EXPECT_THAT(svg, HasSubstr("prefers-color-scheme: dark"));
  EXPECT_THAT(svg, Not(HasSubstr("<script")));
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  const std::vector<PlotPoint> raw = points_of(svg, "raw");
  ASSERT_EQ(raw.size(), 500u);
  for (size_t i = 0; i < raw.size(); ++i) {
    EXPECT_GE(raw[i].x, 60);
    EXPECT_LE(raw[i].x, 745);
    EXPECT_GE(raw[i].y, 40);
    EXPECT_LE(raw[i].y, 370);
    if (i > 0) {
      EXPECT_GE(raw[i].x, raw[i - 1].x);
    }
  }
  EXPECT_LT(raw.front().y, raw.back().y); // the loss falls: y grows downwards
  EXPECT_EQ(points_of(svg, "smooth").size(), 500u);
  EXPECT_EQ(points_of(svg, "validation").size(), 10u);
}

TEST(LossSvg, ManyPointsKeepTheirOutlineInFewer) {
  LossPlot plot = example(200'000);
  plot.training[123'456].y = 9.0; // a spike
  const std::string svg = loss_svg(plot);
  EXPECT_LT(svg.size(), 200'000u);
  const std::vector<PlotPoint> raw = points_of(svg, "raw");
  double top = 1e9, at = 0;
  for (const PlotPoint& p : raw) {
    if (p.y < top) {
      top = p.y;
      at = p.x;
    }
  }
  EXPECT_NEAR((at - 64) / (740 - 64), 123'456 / 200'000.0, 0.01);
}

TEST(LossSvg, GapsNanAndVeryFewPointsAreDrawn) {
  LossPlot plot = example(20);
  plot.training[10].y = std::nan("");
  const std::string svg = loss_svg(plot);
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  EXPECT_EQ(points_of(svg, "raw").size(), 19u);
  EXPECT_THAT(loss_svg({.title = "nothing"}), HasSubstr("</svg>"));
  EXPECT_THAT(loss_svg({.title = "one", .training = {{1, 2}}}), Not(HasSubstr("nan")));
  EXPECT_THAT(loss_svg({.title = "flat", .training = {{1, 2}, {2, 2}}}), Not(HasSubstr("inf")));
}

} // namespace
} // namespace pentatron::plot
