/// Draws the pictures of this folder: SVG without scripts, readable on light and dark pages.
#pragma once

#include <cmath>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "pentatron/plot/loss_plot.h"

namespace pentatron::plot {

inline constexpr double kWidth = 760, kHeight = 420;
inline constexpr double kLeft = 64, kRight = 20, kTop = 44, kBottom = 52;

bool finite(const PlotPoint& p);

/// Fewer points with the same outline: of each group its lowest and highest.
std::vector<PlotPoint> thinned(const std::vector<PlotPoint>& points);

struct Range {
  double low = INFINITY;
  double high = -INFINITY;
  void cover(double v);
  void make_wide();
};

/// Powers of ten in [low, high], and multiples of them where there are few.
std::vector<double> log_ticks(double low, double high);

class Canvas {
 public:
  /// The values at the ends of both axes.
  Canvas(double x0, double x1, double y0, double y1, bool log_x = false, bool log_y = false)
      : x0_(log_x ? std::log10(x0) : x0), x1_(log_x ? std::log10(x1) : x1),
        y0_(log_y ? std::log10(y0) : y0), y1_(log_y ? std::log10(y1) : y1), log_x_(log_x),
        log_y_(log_y) {}

  double x(double value) const;
  double y(double value) const;

  template <class... Args> void add(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(svg), format, std::forward<Args>(args)...);
  }
  void begin(const std::string& title);
  void line(const std::string& style, double xa, double ya, double xb, double yb);
  void text(const char* attributes, double xa, double ya, const std::string& words);
  /// A polyline for each run of finite points.
  void curve(const std::string& style, const std::vector<PlotPoint>& points);
  void axes(const std::vector<double>& xs, const std::vector<double>& ys, const std::string& title,
            const std::string& x_label, const std::string& y_label);

  std::string svg;

 private:
  double x0_, x1_, y0_, y1_;
  bool log_x_, log_y_;
};

} // namespace pentatron::plot
