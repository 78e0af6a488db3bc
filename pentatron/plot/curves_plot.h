/// Curves of several runs in one picture.
#pragma once

#include <string>
#include <vector>

#include "pentatron/plot/loss_plot.h"
#include "pentatron/plot/metrics_text.h"

namespace pentatron::plot {

struct Curve {
  std::string name;
  std::vector<PlotPoint> points;     ///< by increasing x; points that are not finite leave a gap
  std::vector<PlotPoint> validation; ///< drawn as dots on a dotted line
};

struct CurvesPlot {
  std::string title, x_label, y_label;
  std::vector<Curve> curves;
  /// Points that weigh in the smoothed curve (smoothed()); 0: the curves as they are, without a
  /// thin curve behind them.
  double smooth = 0;
  bool log_x = false, log_y = false; ///< points that are not positive are left out
};

/// Each run has a colour and a line in the legend. The ninth run has the colour of the first.
std::string curves_svg(const CurvesPlot& plot);

enum class XAxis : unsigned char { kSteps, kTokens, kTime };
enum class YAxis : unsigned char {
  kLoss,
  kGradNorm,
  kTokensPerSecond,
  kMfu,
  kLearningRate,
  kFigure
};

struct NamedMetrics {
  std::string name;
  std::vector<MetricsPoint> points;
};

/// The curves of runs. Time is the sum of step times, without evaluation and saving, in seconds,
/// minutes or hours. `figure` is the name of MetricsPoint::figure, which YAxis::kFigure draws, that
/// of evaluations too. Throws DataError if a run has no such values, naming it.
CurvesPlot make_curves(const std::vector<NamedMetrics>& runs, XAxis x, YAxis y,
                       const std::string& figure = {});

} // namespace pentatron::plot
