/// The loss of a run as a picture: an SVG without scripts, readable on a light and on a dark page.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace pentatron::plot {

/// Stands in every picture of this folder, so that one can tell where it comes from.
inline constexpr const char* kPlotMark = "<!-- drawn by pentatron -->";

struct PlotPoint {
  double x = 0;
  double y = 0;
};

struct LossPlot {
  std::string title;
  std::string x_label = "iteration";
  std::string y_label = "loss (nats per token)";
  std::vector<PlotPoint> training; ///< by increasing x; points that are not finite leave a gap
  std::vector<PlotPoint> validation;
  std::optional<double> reference; ///< a horizontal line, such as the corpus's unigram entropy
  std::string reference_label = "unigram entropy";
};

/// The picture. Draws the training loss thin, smoothed thick, the validation loss as points on a
/// line.
std::string loss_svg(const LossPlot& plot);

/// Exponential moving average without the bias of its start; `window` points weigh about 1 - 1/e.
/// Points that are not finite are skipped.
std::vector<PlotPoint> smoothed(const std::vector<PlotPoint>& points, double window);

/// Round numbers that cover [low, high] in about `count` steps, in increasing order: 1, 2 or 5
/// times a power of ten apart.
std::vector<double> ticks(double low, double high, int count);

} // namespace pentatron::plot
