#include "pentatron/plot/loss_plot.h"

#include <algorithm>
#include <iterator>

#include "pentatron/plot/canvas.h"

namespace pentatron::plot {

namespace {

constexpr size_t kMaxDots = 200;

void draw_legend(Canvas& canvas, const LossPlot& plot) {
  double y = kTop + 14;
  const auto entry = [&](const char* style, const std::string& words) {
    canvas.line(style, kWidth - kRight - 178, y - 4, kWidth - kRight - 152, y - 4);
    canvas.text("", kWidth - kRight - 144, y, words);
    y += 19;
  };
  if (!plot.training.empty()) entry("raw", "training");
  if (plot.training.size() > 2) entry("smooth", "training, smoothed");
  if (!plot.validation.empty()) entry("validation", "validation");
  if (plot.reference)
    entry("reference", fmt::format("{} {:.3f}", plot.reference_label, *plot.reference));
}

} // namespace

std::string loss_svg(const LossPlot& plot) {
  const std::vector<PlotPoint> smooth =
      smoothed(plot.training, std::max(1.0, static_cast<double>(plot.training.size()) / 40));
  Range x_range, y_range;
  for (const auto* points : {&plot.training, &plot.validation}) {
    for (const PlotPoint& p : *points) {
      if (!finite(p)) continue;
      x_range.cover(p.x);
      y_range.cover(p.y);
    }
  }
  if (plot.reference) y_range.cover(*plot.reference);
  x_range.make_wide();
  y_range.make_wide();
  const std::vector<double> ys = ticks(y_range.low, y_range.high, 6);
  const std::vector<double> xs = ticks(x_range.low, x_range.high, 8);
  const double x0 = xs.front() < 0 || x_range.low > 0.1 * x_range.high ? x_range.low : xs.front();
  Canvas canvas(x0, x_range.high, ys.front(), ys.back());
  canvas.begin(plot.title);
  std::vector<double> shown;
  std::copy_if(xs.begin(), xs.end(), std::back_inserter(shown), [&](double v) { return v >= x0; });
  canvas.axes(shown.size() > 1 ? shown : xs, ys, plot.title, plot.x_label, plot.y_label);
  if (plot.reference) {
    canvas.line("reference", kLeft, canvas.y(*plot.reference), kWidth - kRight,
                canvas.y(*plot.reference));
  }
  canvas.curve("raw", thinned(plot.training));
  if (plot.training.size() > 2) canvas.curve("smooth", thinned(smooth));
  canvas.curve("validation", thinned(plot.validation));
  for (const PlotPoint& p : plot.validation) {
    if (finite(p) && plot.validation.size() <= kMaxDots)
      canvas.add("<circle class=\"dot\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\"/>\n", canvas.x(p.x),
                 canvas.y(p.y));
  }
  draw_legend(canvas, plot);
  canvas.add("</svg>\n");
  return std::move(canvas.svg);
}

} // namespace pentatron::plot
