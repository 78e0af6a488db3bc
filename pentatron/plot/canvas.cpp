#include "pentatron/plot/canvas.h"

#include <algorithm>
#include <cmath>

#include "pentatron/base/format.h"
#include "pentatron/base/text.h"

namespace pentatron::plot {

namespace {

constexpr size_t kMaxPoints = 2000;

// System fonts, and colours of equal contrast on both backgrounds.
constexpr const char* kStyle = R"(
  .page { fill: #ffffff } text { font: 13px system-ui, sans-serif; fill: #333333 } .title { font-size: 16px; font-weight: 600 }
  .grid { stroke: #00000018 } .axis { stroke: #666666 } .raw { stroke: #1f77b4; stroke-width: 1; opacity: .35 }
  .smooth { stroke: #1f77b4; stroke-width: 2 } .validation { stroke: #d9541e; stroke-width: 1.5 } .dot { fill: #d9541e }
  .reference { stroke: #777777; stroke-dasharray: 6 4 } polyline, line { fill: none; stroke-linejoin: round }
  .thin { stroke-width: 1; opacity: .25 } .thick { stroke-width: 2 } .faint { stroke-dasharray: 2 3; stroke-width: 1.5 }
  .c0 { stroke: #1f77b4 } .c1 { stroke: #d9541e } .c2 { stroke: #2a8f4d } .c3 { stroke: #b8362f }
  .c4 { stroke: #8a5fc0 } .c5 { stroke: #8c6a4f } .c6 { stroke: #c653a5 } .c7 { stroke: #77802a }
  @media (prefers-color-scheme: dark) {
    .page { fill: #14171c } text { fill: #d5d9e0 } .grid { stroke: #ffffff1c } .axis { stroke: #8a919c }
    .raw, .smooth { stroke: #6cb2eb } .validation { stroke: #ff8a5c } .dot { fill: #ff8a5c } .reference { stroke: #9aa1ab }
    .c0 { stroke: #6cb2eb } .c1 { stroke: #ff8a5c } .c2 { stroke: #62c98a } .c3 { stroke: #f27970 }
    .c4 { stroke: #b99be6 } .c5 { stroke: #c9a688 } .c6 { stroke: #eb8fd0 } .c7 { stroke: #b9c25e }
  }
)";

std::string tick_text(double value, double step) {
  const int digits = std::clamp(static_cast<int>(std::ceil(-std::log10(step) - 1e-9)), 0, 9);
  if (std::abs(value) >= 1e5 && std::abs(value) < 1e15) return format_count(value);
  if (std::abs(value) >= 1e15 || step < 1e-9) return fmt::format("{:.3g}", value);
  return fmt::format("{:.{}f}", value == 0 ? 0.0 : value, digits);
}

} // namespace

bool finite(const PlotPoint& p) {
  return std::isfinite(p.x) && std::isfinite(p.y);
}

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

void Range::cover(double v) {
  low = std::min(low, v);
  high = std::max(high, v);
}

void Range::make_wide() {
  if (low > high) *this = {0, 1};
  if (high - low < 1e-9 * std::max(1.0, std::abs(high))) {
    const double by = std::max(0.5, 1e-6 * std::abs(high));
    low -= by;
    high += by;
  }
}

double Canvas::x(double value) const {
  if (log_x_) value = std::log10(value);
  return kLeft + (value - x0_) / (x1_ - x0_) * (kWidth - kLeft - kRight);
}

double Canvas::y(double value) const {
  if (log_y_) value = std::log10(value);
  return kHeight - kBottom - (value - y0_) / (y1_ - y0_) * (kHeight - kTop - kBottom);
}

void Canvas::begin(const std::string& title) {
  add("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" "
      "height=\"{1:.0f}\" role=\"img\">\n{4}\n<title>{2}</title>\n<style>{3}</style>\n"
      "<rect class=\"page\" width=\"100%\" height=\"100%\" rx=\"6\"/>\n",
      kWidth, kHeight, xml_escaped(title), kStyle, kPlotMark);
}

void Canvas::line(const std::string& style, double xa, double ya, double xb, double yb) {
  add("<line class=\"{}\" x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\"/>\n", style, xa,
      ya, xb, yb);
}

void Canvas::text(const char* attributes, double xa, double ya, const std::string& words) {
  add("<text x=\"{:.1f}\" y=\"{:.1f}\" {}>{}</text>\n", xa, ya, attributes, xml_escaped(words));
}

void Canvas::curve(const std::string& style, const std::vector<PlotPoint>& points) {
  auto p = points.begin();
  while ((p = std::find_if(p, points.end(), finite)) != points.end()) {
    const auto end = std::find_if_not(p, points.end(), finite);
    add("<polyline class=\"{}\" points=\"", style);
    for (; p != end; ++p) add("{:.1f},{:.1f} ", x(p->x), y(p->y));
    add("\"/>\n");
  }
}

void Canvas::axes(const std::vector<double>& xs, const std::vector<double>& ys,
                  const std::string& title, const std::string& x_label,
                  const std::string& y_label) {
  const double right = kWidth - kRight, bottom = kHeight - kBottom;
  const auto name = [](const std::vector<double>& all, double v, bool log) {
    return log ? (v >= 1e5 && v < 1e15 ? format_count(v) : fmt::format("{:g}", v))
               : tick_text(v, all.size() > 1 ? all[1] - all[0] : 1);
  };
  for (const double v : ys) {
    line("grid", kLeft, y(v), right, y(v));
    text("text-anchor=\"end\"", kLeft - 8, y(v) + 4.5, name(ys, v, log_y_));
  }
  for (const double v : xs) {
    if (x(v) > right + 0.5) continue;
    line("axis", x(v), bottom, x(v), bottom + 5);
    text("text-anchor=\"middle\"", x(v), bottom + 19, name(xs, v, log_x_));
  }
  line("axis", kLeft, kTop, kLeft, bottom);
  line("axis", kLeft, bottom, right, bottom);
  text("class=\"title\"", kLeft, 24, title);
  text("text-anchor=\"middle\"", (kLeft + right) / 2, kHeight - 12, x_label);
  add("<text transform=\"translate(16 {:.1f}) rotate(-90)\" text-anchor=\"middle\">{}</text>\n",
      (kTop + bottom) / 2, xml_escaped(y_label));
}

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

std::vector<double> log_ticks(double low, double high) {
  std::vector<double> out;
  const int first = static_cast<int>(std::floor(std::log10(low) + 1e-9));
  const int last = static_cast<int>(std::ceil(std::log10(high) - 1e-9));
  const int span = last - first;
  const std::vector<double> digits = span <= 1   ? std::vector<double>{1, 1.5, 2, 3, 4, 5, 6, 8}
                                     : span <= 3 ? std::vector<double>{1, 2, 5}
                                                 : std::vector<double>{1};
  for (int power = first; power <= last; power += std::max(1, span / 8))
    for (const double digit : digits) {
      const double value = digit * std::pow(10.0, power);
      if (value >= low * (1 - 1e-9) && value <= high * (1 + 1e-9)) out.push_back(value);
    }
  return out;
}

} // namespace pentatron::plot
