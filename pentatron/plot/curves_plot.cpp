#include "pentatron/plot/curves_plot.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "pentatron/base/error.h"
#include "pentatron/plot/canvas.h"

namespace pentatron::plot {

namespace {

constexpr size_t kColours = 8, kMaxDotsOfCurve = 200, kMaxLegend = 16;

std::vector<PlotPoint> drawable(std::vector<PlotPoint> points, const CurvesPlot& plot) {
  // Whose squares, halves and differences are numbers too, and what a logarithmic axis can show.
  constexpr double kMost = 1e100, kLeast = 1e-100;
  for (PlotPoint& p : points)
    if ((plot.log_x && p.x < kLeast) || (plot.log_y && p.y < kLeast) || !(std::abs(p.x) < kMost) ||
        !(std::abs(p.y) < kMost))
      p.y = NAN;
  return points;
}

/// The ends of an axis and its ticks.
struct Scale {
  double low, high;
  std::vector<double> marks;
};

Scale make_scale(Range range, bool log, int count, bool round) {
  if (log) {
    if (range.low > range.high) range = {.low = 1, .high = 10};
    if (range.high < range.low * 1.01) range = {.low = range.low / 2, .high = range.high * 2};
    std::vector<double> marks = log_ticks(range.low, range.high);
    if (marks.empty()) marks = {range.low, range.high};
    return {range.low, range.high, std::move(marks)};
  }
  range.make_wide();
  std::vector<double> marks = ticks(range.low, range.high, count);
  if (round) return {marks.front(), marks.back(), std::move(marks)};
  const double low = range.low > 0.1 * range.high ? range.low : std::min(marks.front(), range.low);
  std::erase_if(marks, [&](double v) { return v < low; });
  return {low, range.high, std::move(marks)};
}

std::string shortened(const std::string& name) {
  constexpr size_t kMaxName = 34;
  return name.size() <= kMaxName ? name : "..." + name.substr(name.size() - kMaxName + 3);
}

void draw_names(Canvas& canvas, const CurvesPlot& plot) {
  size_t longest = 0;
  for (const Curve& curve : plot.curves) longest = std::max(longest, shortened(curve.name).size());
  const double left = kWidth - kRight - 34 - 7.2 * static_cast<double>(longest);
  double y = kTop + 14;
  for (size_t i = 0; i < std::min(plot.curves.size(), kMaxLegend); ++i, y += 19) {
    canvas.line(fmt::format("thick c{}", i % kColours), left, y - 4, left + 26, y - 4);
    canvas.text("", left + 34, y, shortened(plot.curves[i].name));
  }
  if (plot.curves.size() > kMaxLegend)
    canvas.text("", left + 34, y, fmt::format("and {} more", plot.curves.size() - kMaxLegend));
}

struct XUnit {
  const char* label;
  double factor;
};

XUnit unit_of_time(double seconds) {
  if (seconds > 7200) return {"training time (hours)", 1 / 3600.0};
  if (seconds > 300) return {"training time (minutes)", 1 / 60.0};
  return {"training time (seconds)", 1};
}

std::optional<double> value_of(const MetricsPoint& p, YAxis y) {
  switch (y) {
  case YAxis::kLoss:
    return p.loss;
  case YAxis::kGradNorm:
    return p.grad_norm;
  case YAxis::kTokensPerSecond:
    return p.tokens_per_s;
  case YAxis::kMfu:
    return p.mfu ? std::optional(*p.mfu * 100) : std::nullopt;
  case YAxis::kLearningRate:
    return p.learning_rate;
  case YAxis::kFigure:
    return p.figure;
  }
  return std::nullopt;
}

struct YName {
  std::string key, title, label;
};

YName name_of(YAxis y, const std::string& figure) {
  switch (y) {
  case YAxis::kLoss:
    return {"loss", "loss", "loss (nats per token)"};
  case YAxis::kGradNorm:
    return {"grad_norm", "gradient norm", "gradient norm"};
  case YAxis::kTokensPerSecond:
    return {"tokens_per_s", "throughput", "tokens per second"};
  case YAxis::kMfu:
    return {"mfu", "MFU", "MFU (%)"};
  case YAxis::kLearningRate:
    return {"learning_rate", "learning rate", "learning rate"};
  case YAxis::kFigure:
    break;
  }
  std::string words = figure;
  std::ranges::replace(words, '_', ' ');
  return {figure, words, words};
}

/// Where on the x axis the lines of one run lie.
std::vector<double> positions(const NamedMetrics& run, XAxis x) {
  std::vector<double> out;
  double seconds = 0, tokens = 0;
  for (const MetricsPoint& p : run.points) {
    if (p.training) {
      seconds += p.step_time_s.value_or(0);
      // A file need not have a count of tokens.
      tokens += p.tokens_per_s.value_or(0) * p.step_time_s.value_or(0);
    }
    if (p.consumed_tokens) tokens = *p.consumed_tokens;
    out.push_back(x == XAxis::kSteps    ? static_cast<double>(p.iteration)
                  : x == XAxis::kTokens ? tokens
                                        : seconds);
  }
  return out;
}

} // namespace

std::string curves_svg(const CurvesPlot& plot) {
  std::vector<Curve> curves = plot.curves;
  Range x_range, y_range;
  for (Curve& curve : curves) {
    curve.points = drawable(std::move(curve.points), plot);
    curve.validation = drawable(std::move(curve.validation), plot);
    for (const auto* points : {&curve.points, &curve.validation})
      for (const PlotPoint& p : *points) {
        if (!finite(p)) continue;
        x_range.cover(p.x);
        y_range.cover(p.y);
      }
  }
  const Scale xs = make_scale(x_range, plot.log_x, 8, /*round=*/false);
  const Scale ys = make_scale(y_range, plot.log_y, 6, /*round=*/true);
  Canvas canvas(xs.low, xs.high, ys.low, ys.high, plot.log_x, plot.log_y);
  canvas.begin(plot.title);
  canvas.axes(xs.marks, ys.marks, plot.title, plot.x_label, plot.y_label);
  for (size_t i = 0; i < curves.size(); ++i) {
    const std::string colour = fmt::format("c{}", i % kColours);
    const Curve& curve = curves[i];
    if (plot.smooth > 0) {
      canvas.curve("thin " + colour, thinned(curve.points));
      canvas.curve("thick " + colour, thinned(smoothed(curve.points, plot.smooth)));
    } else {
      canvas.curve("thick " + colour, thinned(curve.points));
    }
    canvas.curve("faint " + colour, thinned(curve.validation));
    if (curve.validation.size() > kMaxDotsOfCurve) continue;
    for (const PlotPoint& p : curve.validation)
      if (finite(p))
        canvas.add("<circle class=\"{}\" fill=\"none\" stroke-width=\"2\" cx=\"{:.1f}\" "
                   "cy=\"{:.1f}\" r=\"3\"/>\n",
                   colour, canvas.x(p.x), canvas.y(p.y));
  }
  draw_names(canvas, plot);
  canvas.add("</svg>\n");
  return std::move(canvas.svg);
}

CurvesPlot make_curves(const std::vector<NamedMetrics>& runs, XAxis x, YAxis y,
                       const std::string& figure) {
  const YName name = name_of(y, figure);
  CurvesPlot plot{.title = name.title, .y_label = name.label};
  double longest = 0;
  for (const NamedMetrics& run : runs) {
    const std::vector<double> at = positions(run, x);
    Curve curve{.name = run.name};
    for (size_t i = 0; i < at.size(); ++i) {
      const MetricsPoint& p = run.points[i];
      if (const auto value = value_of(p, y); value && (p.training || y == YAxis::kFigure))
        curve.points.push_back({at[i], *value});
      else if (p.training && y == YAxis::kLoss)
        curve.points.push_back({at[i], NAN});
      if (y == YAxis::kLoss && p.validation_loss)
        curve.validation.push_back({at[i], *p.validation_loss});
    }
    if (std::none_of(curve.points.begin(), curve.points.end(), finite) && curve.validation.empty())
      raise<DataError>("{} contains no values of {}", run.name, name.key);
    if (!at.empty()) longest = std::max(longest, at.back());
    plot.curves.push_back(std::move(curve));
  }
  plot.x_label = x == XAxis::kSteps ? "iteration" : "tokens";
  if (x == XAxis::kTime) {
    const XUnit unit = unit_of_time(longest);
    plot.x_label = unit.label;
    for (Curve& curve : plot.curves)
      for (auto* points : {&curve.points, &curve.validation})
        for (PlotPoint& p : *points) p.x *= unit.factor;
  }
  return plot;
}

} // namespace pentatron::plot
