#include <cmath>
#include <fstream>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pentatron/base/error.h"
#include "pentatron/plot/curves_plot.h"
#include "tests/support/files.h"

namespace pentatron::plot {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kText =
    R"({"iteration":1,"loss":4.0,"grad_norm":2.0,"learning_rate":0.1,"consumed_samples":2,"consumed_tokens":32,"step_time_s":0.5,"tokens_per_s":64,"mfu":0.5}
{"iteration":1,"validation_loss":3.5,"consumed_samples":2,"consumed_tokens":32}
{"iteration":2,"loss":null,"learning_rate":0.1,"consumed_samples":4,"consumed_tokens":64,"step_time_s":0.25}
{"iteration":3,"loss":2.0,"grad_norm":1.0,"learning_rate":0.05,"consumed_samples":6,"consumed_tokens":96,"step_time_s":0.25,"tokens_per_s":128,"mfu":0.75}
)";

NamedMetrics run(const std::string& name) {
  return {name, parse_metrics(kText).points};
}

std::vector<double> xs(const std::vector<PlotPoint>& points) {
  std::vector<double> out;
  for (const PlotPoint& p : points) out.push_back(p.x);
  return out;
}

TEST(MetricsText, KnowsStepsAndEvaluations) {
  const MetricsText read = parse_metrics(kText);
  EXPECT_EQ(read.damaged, 0);
  EXPECT_EQ(read.bytes, std::string_view(kText).size());
  ASSERT_EQ(read.points.size(), 4u);
  EXPECT_TRUE(read.points[0].training);
  EXPECT_EQ(read.points[0].mfu, 0.5);
  EXPECT_FALSE(read.points[1].training);
  EXPECT_EQ(read.points[1].validation_loss, 3.5);
  EXPECT_FALSE(read.points[1].loss);
  EXPECT_TRUE(read.points[2].training) << "a step without targets is a step";
  EXPECT_FALSE(read.points[2].loss);
  EXPECT_EQ(parse_metrics(kText, 1).points.size(), 2u);
}

TEST(MetricsText, PassesOverDamagedLines) {
  for (const char* bad :
       {"x", "[]", "{}", R"({"iteration":1.5})", R"({"iteration":1,"loss":"a"})"}) {
    const std::string text = std::string(kText) + bad + "\n" +
                             R"({"iteration":4,"loss":1})"
                             "\n";
    const MetricsText read = parse_metrics(text);
    EXPECT_EQ(read.damaged, 1) << bad;
    EXPECT_EQ(read.first_damaged, 5) << bad;
    EXPECT_EQ(read.points.size(), 5u);
    EXPECT_EQ(parse_metrics(text, 1).points.size(), 2u);
  }
}

TEST(MetricsText, AWrongIterationDamagesOneLineOnly) {
  const auto line = [](int64_t iteration) {
    return fmt::format("{{\"iteration\":{},\"loss\":1}}\n", iteration);
  };
  for (const int64_t wrong : {int64_t{9'000'000'000}, int64_t{7}, int64_t{1}, int64_t{-3}}) {
    SCOPED_TRACE(wrong);
    const std::string text =
        line(1) + line(2) + line(3) + line(wrong) + line(4) + line(5) + line(6);
    const MetricsText all = parse_metrics(text);
    EXPECT_EQ(all.damaged, 1);
    EXPECT_EQ(all.first_damaged, 4);
    EXPECT_THAT(all.why, HasSubstr(fmt::format("iteration {} is out of order", wrong)));
    ASSERT_EQ(all.points.size(), 6u);
    EXPECT_EQ(all.points[3].iteration, 4);
    EXPECT_FALSE(all.has_later);
    const MetricsText earlier = parse_metrics(text, 5);
    EXPECT_EQ(earlier.points.size(), 5u) << "lines behind the wrong one are kept";
    EXPECT_EQ(earlier.bytes, text.size() - line(6).size());
    EXPECT_TRUE(earlier.has_later);
    EXPECT_EQ(parse_metrics(text, 2).points.size(), 2u);
  }
}

TEST(MetricsText, AFileThatIsBeingWrittenIsReadToItsLastWholeLine) {
  const TemporaryFolder folder;
  const std::string file = folder.path() / "metrics.jsonl";
  const auto write = [&](const std::string& text) { std::ofstream(file) << text; };
  write(std::string(kText) + R"({"iteration":4,"lo)");
  EXPECT_EQ(read_metrics(file).size(), 4u);
  write("oops\n" + std::string(kText));
  EXPECT_EQ(read_metrics(file).size(), 4u);
  write("oops\n");
  EXPECT_THAT([&] { read_metrics(file); },
              testing::ThrowsMessage<DataError>(HasSubstr("line 1 is not a line of metrics")));
  write("");
  EXPECT_THAT([&] { read_metrics(file); },
              testing::ThrowsMessage<DataError>(HasSubstr("contains no metrics yet")));
}

TEST(Curves, LieOverStepsTokensAndTime) {
  const auto at = [](XAxis x) { return make_curves({run("a")}, x, YAxis::kLoss).curves[0]; };
  EXPECT_THAT(xs(at(XAxis::kSteps).points), ElementsAre(1, 2, 3));
  EXPECT_THAT(xs(at(XAxis::kTokens).points), ElementsAre(32, 64, 96));
  EXPECT_THAT(xs(at(XAxis::kTime).points), ElementsAre(0.5, 0.75, 1.0));
  EXPECT_THAT(xs(at(XAxis::kTime).validation), ElementsAre(0.5));
  EXPECT_TRUE(std::isnan(at(XAxis::kSteps).points[1].y)) << "a gap, no zero";
  NamedMetrics old = run("old");
  for (MetricsPoint& p : old.points) p.consumed_tokens.reset();
  EXPECT_THAT(xs(make_curves({old}, XAxis::kTokens, YAxis::kGradNorm).curves[0].points),
              ElementsAre(32, 64));
}

TEST(Curves, HaveTheValuesThatAreAskedFor) {
  const auto values = [](YAxis y) {
    std::vector<double> out;
    const CurvesPlot plot = make_curves({run("a")}, XAxis::kSteps, y);
    for (const PlotPoint& p : plot.curves[0].points) out.push_back(p.y);
    return out;
  };
  EXPECT_THAT(values(YAxis::kGradNorm), ElementsAre(2, 1));
  EXPECT_THAT(values(YAxis::kTokensPerSecond), ElementsAre(64, 128));
  EXPECT_THAT(values(YAxis::kMfu), ElementsAre(50, 75));
  EXPECT_THAT(values(YAxis::kLearningRate), ElementsAre(0.1, 0.1, 0.05));
  NamedMetrics without = run("bare");
  for (MetricsPoint& p : without.points) p.mfu.reset();
  EXPECT_THAT([&] { make_curves({without}, XAxis::kSteps, YAxis::kMfu); },
              testing::ThrowsMessage<DataError>(HasSubstr("bare contains no values of mfu")));
}

TEST(MetricsText, AFigureIsAnyNumberAndOneOfAllLayersOfExperts) {
  constexpr const char* kExperts =
      R"({"iteration":1,"loss":4,"z_loss":7,"nan":true,"experts":[{"layer":"a","max_load":1.5,"entropy":0.9,"unused":1,"dropped":0.5},{"layer":"b","max_load":3,"entropy":0.5,"unused":2,"dropped":0}]}
{"iteration":2,"loss":4,"z_loss":null}
{"iteration":2,"validation_loss":3.5}
)";
  const auto figures = [&](const std::string& name) {
    std::vector<double> out;
    for (const MetricsPoint& p : parse_metrics(kExperts, 9, name).points)
      out.push_back(p.figure.value_or(-1));
    return out;
  };
  EXPECT_EQ(figures("z_loss")[0], 7);
  EXPECT_TRUE(std::isnan(figures("z_loss")[1]));
  EXPECT_THAT(figures("nan"), ElementsAre(-1, -1, -1)) << "no number";
  EXPECT_THAT(figures("validation_loss"), ElementsAre(-1, -1, 3.5));
  EXPECT_THAT(figures("expert_max_load"), ElementsAre(3, -1, -1));
  EXPECT_THAT(figures("expert_entropy"), ElementsAre(0.5, -1, -1));
  EXPECT_THAT(figures("expert_unused"), ElementsAre(3, -1, -1));
  EXPECT_THAT(figures("expert_dropped"), ElementsAre(0.25, -1, -1));
  const MetricsText read = parse_metrics(kExperts, 9, "x");
  EXPECT_EQ(read.figures.count("expert_entropy") + read.figures.count("z_loss"), 2u);
  EXPECT_EQ(read.figures.count("iteration") + read.figures.count("nan"), 0u);
  const CurvesPlot plot = make_curves({{"a", parse_metrics(kExperts, 9, "validation_loss").points}},
                                      XAxis::kSteps, YAxis::kFigure, "validation_loss");
  EXPECT_EQ(plot.title, "validation loss");
  EXPECT_THAT(xs(plot.curves[0].points), ElementsAre(2));
}

TEST(CurvesSvg, HasEveryRunInItsColour) {
  CurvesPlot plot = make_curves({run("first"), run("<second>")}, XAxis::kSteps, YAxis::kLoss);
  plot.smooth = 2;
  const std::string svg = curves_svg(plot);
  for (const char* part :
       {">first<", "&lt;second&gt;", "thin c0", "thick c1", "<circle", "iteration"})
    EXPECT_THAT(svg, HasSubstr(part));
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  plot.smooth = 0;
  EXPECT_THAT(curves_svg(plot), Not(HasSubstr("class=\"thin")));
  std::vector<NamedMetrics> many;
  for (int i = 0; i < 40; ++i) many.push_back(run(fmt::format("run {}", i)));
  EXPECT_THAT(curves_svg(make_curves(many, XAxis::kSteps, YAxis::kLoss)), HasSubstr("and 24 more"));
}

TEST(CurvesSvg, LargeNumbersAreShort) {
  CurvesPlot plot{.curves = {{.name = "a", .points = {{1, 3}, {1.2e9, 2.5}}}}};
  for (const bool log : {false, true}) {
    plot.log_x = log;
    EXPECT_THAT(curves_svg(plot), HasSubstr(">1.00B<"));
  }
}

TEST(CurvesSvg, LogAxesAndOddValuesAreDrawn) {
  for (const bool log : {false, true})
    for (const auto& points : std::vector<std::vector<PlotPoint>>{{},
                                                                  {{1, 2}},
                                                                  {{0, 0}, {-1, -5}},
                                                                  {{1, 1e308}, {2, -1e308}, {3, 1}},
                                                                  {{1, 1e-300}, {1e90, 5}},
                                                                  {{1, 5e-324}},
                                                                  {{5e-324, 5e-324}},
                                                                  {{1, 1e-310}, {2, 3}},
                                                                  {{5, 3}, {6, 3}}}) {
      const std::string svg = curves_svg({.title = "t",
                                          .curves = {{.name = "odd", .points = points}},
                                          .smooth = 3,
                                          .log_x = log,
                                          .log_y = log});
      EXPECT_THAT(svg, HasSubstr("</svg>"));
      EXPECT_THAT(svg, Not(HasSubstr("nan")));
      EXPECT_THAT(svg, Not(HasSubstr("inf")));
    }
  CurvesPlot plot = make_curves({run("a")}, XAxis::kSteps, YAxis::kLoss);
  const std::string linear = curves_svg(plot);
  plot.log_y = true;
  EXPECT_NE(curves_svg(plot), linear);
}

} // namespace
} // namespace pentatron::plot
