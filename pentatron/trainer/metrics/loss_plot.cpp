#include "pentatron/trainer/metrics/loss_plot.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "pentatron/base/text.h"

#include <fmt/format.h>

namespace pentatron::trainer {

namespace {

constexpr double kWidth = 760, kHeight = 420, kLeft = 64, kRight = 20, kTop = 44, kBottom = 52;
constexpr size_t kMaxPoints = 2000, kMaxDots = 200;

// System fonts, and colours of equal contrast on both backgrounds.
constexpr const char* kStyle = R"(
  .page { fill: #ffffff } text { font: 13px system-ui, sans-serif; fill: #333333 } .title { font-size: 16px; font-weight: 600 }
  .grid { stroke: #00000018 } .axis { stroke: #666666 } .raw { stroke: #1f77b4; stroke-width: 1; opacity: .35 }
  .smooth { stroke: #1f77b4; stroke-width: 2 } .validation { stroke: #d9541e; stroke-width: 1.5 } .dot { fill: #d9541e }
  .reference { stroke: #777777; stroke-dasharray: 6 4 } polyline, line { fill: none; stroke-linejoin: round }
  @media (prefers-color-scheme: dark) {
    .page { fill: #14171c } text { fill: #d5d9e0 } .grid { stroke: #ffffff1c } .axis { stroke: #8a919c }
    .raw, .smooth { stroke: #6cb2eb } .validation { stroke: #ff8a5c } .dot { fill: #ff8a5c } .reference { stroke: #9aa1ab }
  }
)";

bool finite(const PlotPoint& p) {
  return std::isfinite(p.x) && std::isfinite(p.y);
}

/// Fewer points with the same outline: of each group its lowest and highest.
std::vector<PlotPoint> thinned(const std::vector<PlotPoint>& points) {
  if (points.size() <= kMaxPoints) return points;
  const size_t group = (2 * points.size() + kMaxPoints - 1) / kMaxPoints;
  std::vector<PlotPoint> out;
  for (size_t i = 0; i < points.size(); i += group) {
    const auto first = points.begin() + static_cast<std::ptrdiff_t>(i);
    const auto last =
        points.begin() + static_cast<std::ptrdiff_t>(std::min(i + group, points.size()));
    if (const auto gap = std::find_if_not(first, last, finite); gap != last) {
      out.push_back(*gap);
      continue;
    }
    auto [low, high] =
        std::minmax_element(first, last, [](const auto& a, const auto& b) { return a.y < b.y; });
    if (high < low) std::swap(low, high);
    out.push_back(*low);
    if (high != low) out.push_back(*high);
  }
  return out;
}

class Canvas {
 public:
  Canvas(double x0, double x1, double y0, double y1) : x0_(x0), x1_(x1), y0_(y0), y1_(y1) {}

  double x(double value) const {
    return kLeft + (value - x0_) / (x1_ - x0_) * (kWidth - kLeft - kRight);
  }
  double y(double value) const {
    return kHeight - kBottom - (value - y0_) / (y1_ - y0_) * (kHeight - kTop - kBottom);
  }

  template <class... Args> void add(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(svg), format, std::forward<Args>(args)...);
  }
  void line(const char* style, double xa, double ya, double xb, double yb) {
    add("<line class=\"{}\" x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\"/>\n", style, xa,
        ya, xb, yb);
  }
  void text(const char* attributes, double xa, double ya, const std::string& words) {
    add("<text x=\"{:.1f}\" y=\"{:.1f}\" {}>{}</text>\n", xa, ya, attributes, xml_escaped(words));
  }
  /// A polyline for each run of finite points.
  void curve(const char* style, const std::vector<PlotPoint>& points) {
    auto p = points.begin();
    while ((p = std::find_if(p, points.end(), finite)) != points.end()) {
      const auto end = std::find_if_not(p, points.end(), finite);
      add("<polyline class=\"{}\" points=\"", style);
      for (; p != end; ++p) add("{:.1f},{:.1f} ", x(p->x), y(p->y));
      add("\"/>\n");
    }
  }

  std::string svg;

 private:
  double x0_, x1_, y0_, y1_;
};

std::string tick_text(double value, double step) {
  const int digits = std::clamp(static_cast<int>(std::ceil(-std::log10(step) - 1e-9)), 0, 9);
  if (std::abs(value) >= 1e6 || step < 1e-9) return fmt::format("{:.3g}", value);
  return fmt::format("{:.{}f}", value == 0 ? 0.0 : value, digits);
}

struct Range {
  double low = INFINITY;
  double high = -INFINITY;
  void cover(double v) {
    low = std::min(low, v);
    high = std::max(high, v);
  }
  void make_wide() {
    if (low > high) *this = {0, 1};
    if (high - low < 1e-9 * std::max(1.0, std::abs(high))) {
      low -= 0.5;
      high += 0.5;
    }
  }
};

void draw_axes(Canvas& canvas, const std::vector<double>& xs, const std::vector<double>& ys,
               const LossPlot& plot) {
  const double right = kWidth - kRight, bottom = kHeight - kBottom;
  for (const double v : ys) {
    canvas.line("grid", kLeft, canvas.y(v), right, canvas.y(v));
    canvas.text("text-anchor=\"end\"", kLeft - 8, canvas.y(v) + 4.5, tick_text(v, ys[1] - ys[0]));
  }
  for (const double v : xs) {
    if (canvas.x(v) > right + 0.5) continue;
    canvas.line("axis", canvas.x(v), bottom, canvas.x(v), bottom + 5);
    canvas.text("text-anchor=\"middle\"", canvas.x(v), bottom + 19, tick_text(v, xs[1] - xs[0]));
  }
  canvas.line("axis", kLeft, kTop, kLeft, bottom);
  canvas.line("axis", kLeft, bottom, right, bottom);
  canvas.text("class=\"title\"", kLeft, 24, plot.title);
  canvas.text("text-anchor=\"middle\"", (kLeft + right) / 2, kHeight - 12, plot.x_label);
  canvas.add(
      "<text transform=\"translate(16 {:.1f}) rotate(-90)\" text-anchor=\"middle\">{}</text>\n",
      (kTop + bottom) / 2, xml_escaped(plot.y_label));
}

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

std::vector<PlotPoint> smoothed(const std::vector<PlotPoint>& points, double window) {
  const double keep = std::exp(-1.0 / std::max(window, 1e-9));
  std::vector<PlotPoint> out;
  double sum = 0, weight = 0;
  for (const PlotPoint& p : points) {
    if (!finite(p)) continue;
    sum = keep * sum + (1 - keep) * p.y;
    weight = keep * weight + (1 - keep);
    out.push_back({p.x, sum / weight});
  }
  return out;
}

std::vector<double> ticks(double low, double high, int count) {
  const double rough = (high - low) / std::max(count, 1);
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  const double share = rough / power;
  const double step = power * (share <= 1.0 + 1e-9   ? 1
                               : share <= 2.0 + 1e-9 ? 2
                               : share <= 5.0 + 1e-9 ? 5
                                                     : 10);
  const double first = std::floor(low / step + 1e-9), last = std::ceil(high / step - 1e-9);
  std::vector<double> out;
  for (double i = first; i <= last; ++i) out.push_back(i * step);
  return out;
}

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
  canvas.add(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" "
      "height=\"{1:.0f}\" role=\"img\">\n<title>{2}</title>\n<style>{3}</style>\n"
      "<rect class=\"page\" width=\"100%\" height=\"100%\" rx=\"6\"/>\n",
      kWidth, kHeight, xml_escaped(plot.title), kStyle);
  std::vector<double> shown;
  std::copy_if(xs.begin(), xs.end(), std::back_inserter(shown), [&](double v) { return v >= x0; });
  draw_axes(canvas, shown.size() > 1 ? shown : xs, ys, plot);
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

} // namespace pentatron::trainer
