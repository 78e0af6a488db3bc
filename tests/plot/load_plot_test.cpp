#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pentatron/plot/load_plot.h"

namespace pentatron::plot {
namespace {

using ::testing::HasSubstr;

size_t count_of(const std::string& text, const std::string& part) {
  size_t n = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

TEST(LoadPlotTest, HasACellForEveryExpertThatTellsItsLoad) {
  const std::string svg = load_svg({.title = "load <of> experts",
                                    .layers = {"layers.0.mlp", "layers.2.mlp"},
                                    .loads = {{1, 1, 2, 0}, {0.5, 1.5, 1, 1}}});
  EXPECT_THAT(svg, HasSubstr("load &lt;of&gt; experts"));
  EXPECT_EQ(count_of(svg, ", expert "), 8u);
  EXPECT_THAT(svg, HasSubstr("layers.0.mlp, expert 2: 2.00 of the mean load"));
  EXPECT_THAT(svg,
              HasSubstr("fill=\"#d9541e\" fill-opacity=\"0.530\"><title>layers.0.mlp, expert 2"));
  EXPECT_THAT(svg, HasSubstr("fill-opacity=\"0.060\"><title>layers.0.mlp, expert 0"));
  // Crossed out: the expert without a token, and the one of the legend.
  EXPECT_EQ(count_of(svg, "<line class=\"axis\""), 4u);
}

TEST(LoadPlotTest, NamesDoNotOverlapInLargeModels) {
  LoadPlot plot{.title = "large"};
  for (int i = 0; i < 58; ++i) {
    plot.layers.push_back("layers." + std::to_string(i) + ".mlp");
    plot.loads.emplace_back(256, 1.0);
  }
  const std::string svg = load_svg(plot);
  EXPECT_EQ(count_of(svg, "text-anchor=\"end\""), 20u); // every third of 58
  EXPECT_LE(count_of(svg, "text-anchor=\"middle\""), 20u);
}

} // namespace
} // namespace pentatron::plot
