#include "pentatron/plot/load_plot.h"

#include <algorithm>
#include <cmath>

#include "pentatron/base/text.h"
#include "pentatron/plot/canvas.h"

namespace pentatron::plot {

namespace {

constexpr double kLegend = 150; // width of the legend at the right

/// How far a load is from the mean: -1 (a quarter or less) to 1 (four times or more).
double distance(double load) {
  return load <= 0 ? -1 : std::clamp(std::log2(load) / 2, -1.0, 1.0);
}

void cell(Canvas& canvas, double x, double y, double width, double height, double load,
          const std::string& words) {
  const double far = distance(load);
  canvas.add("<rect x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\" fill=\"{}\" "
             "fill-opacity=\"{:.3f}\"><title>{}</title></rect>\n",
             x, y, width, height, far < 0 ? "#1f77b4" : "#d9541e", 0.06 + 0.94 * std::abs(far),
             xml_escaped(words));
  if (load > 0) return;
  canvas.line("axis", x, y, x + width, y + height);
  canvas.line("axis", x, y + height, x + width, y);
}

} // namespace

std::string load_svg(const LoadPlot& plot) {
  size_t experts = 1;
  for (const std::vector<double>& row : plot.loads) experts = std::max(experts, row.size());
  const double rows = static_cast<double>(std::max<size_t>(1, plot.loads.size()));
  const double left = kLeft + 30, right = kWidth - kLegend, bottom = kHeight - kBottom;
  const double width = (right - left) / static_cast<double>(experts),
               height = (bottom - kTop) / rows;
  Canvas canvas(0, static_cast<double>(experts), 0, rows);
  canvas.begin(plot.title);
  canvas.text("class=\"title\"", kLeft, 24, plot.title);
  const auto every = static_cast<size_t>(std::ceil(15 / height)); // names that do not overlap
  for (size_t i = 0; i < plot.loads.size(); ++i) {
    const double y = kTop + static_cast<double>(i) * height;
    if (i % every == 0)
      canvas.text("text-anchor=\"end\"", left - 8, y + height / 2 + 4.5, plot.layers[i]);
    for (size_t e = 0; e < plot.loads[i].size(); ++e)
      cell(canvas, left + static_cast<double>(e) * width, y, width * 0.96, height * 0.96,
           plot.loads[i][e],
           fmt::format("{}, expert {}: {:.2f} of the mean load", plot.layers[i], e,
                       plot.loads[i][e]));
  }
  const auto step = static_cast<size_t>(std::ceil(30 / width));
  for (size_t e = 0; e < experts; e += step)
    canvas.text("text-anchor=\"middle\"", left + (static_cast<double>(e) + 0.5) * width,
                bottom + 19, fmt::format("{}", e));
  canvas.text("text-anchor=\"middle\"", (left + right) / 2, kHeight - 12, "expert");
  double y = kTop;
  canvas.text("", right + 16, y + 10, "of the mean load");
  y += 22;
  for (const double load : {4.0, 2.0, 1.5, 1.0, 0.75, 0.5, 0.25, 0.0}) {
    cell(canvas, right + 16, y, 22, 16, load, "");
    canvas.text("", right + 46, y + 13,
                load == 4   ? "4 or more"
                : load == 0 ? "no token"
                            : fmt::format("{:g}", load));
    y += 21;
  }
  canvas.add("</svg>\n");
  return std::move(canvas.svg);
}

} // namespace pentatron::plot
