#include "pentatron/parallel/pipeline/schedule/draw.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <set>

#include "pentatron/base/error.h"
#include "pentatron/base/text.h"

namespace pentatron::pipeline {
namespace {

constexpr double kLeft = 64;   // room for "rank 12"
constexpr double kRight = 60;  // room for idle shares
constexpr double kTop = 58;    // room for title and legend
constexpr double kRow = 30;    // from row to row
constexpr double kBox = 24;    // height of a box
constexpr double kBottom = 40; // room for the axis
constexpr double kDigit = 6.2; // width of a digit at 10 px
constexpr int kMinWidth = 300;

struct Colour {
  int red, green, blue;
};

struct Look {
  ActionKind kind;
  const char* label;
  Colour colour; // of the rank's first stage
};

constexpr Look kLooks[] = {
    {ActionKind::kForward, "F forward", {127, 176, 235}},
    {ActionKind::kBackward, "B backward", {126, 200, 141}},
    {ActionKind::kBackwardInput, "I input gradient", {118, 205, 205}},
    {ActionKind::kBackwardWeight, "W weight gradient", {246, 196, 104}},
};
constexpr Colour kOther = {150, 150, 150};

Colour colour_of(ActionKind kind) {
  for (const Look& look : kLooks) {
    if (look.kind == kind) return look.colour;
  }
  return kOther;
}

/// Darker for every further stage of a rank: from 1 down to 0.5.
std::string shaded(Colour colour, int turn, int turns) {
  const double factor = turns > 1 ? 1 - 0.5 * turn / (turns - 1) : 1;
  return fmt::format("#{:02x}{:02x}{:02x}", static_cast<int>(colour.red * factor),
                     static_cast<int>(colour.green * factor),
                     static_cast<int>(colour.blue * factor));
}

/// 1, 2 or 5 times a power of ten: at most about `count` steps to `length`.
double tick_step(double length, double count) {
  const double rough = length / count;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= rough) return factor * power;
  }
  return 10 * power;
}

class Drawing {
 public:
  Drawing(const Timeline& timeline, const DrawOptions& options)
      : timeline_(timeline), options_(options), plot_width_(options.width - kLeft - kRight) {
    start_ = std::numeric_limits<double>::infinity();
    double end = -start_;
    for (const auto& row : timeline.rows) {
      for (const Interval& interval : row) {
        if (!std::isfinite(interval.start) || !std::isfinite(interval.end)) {
          raise<ConfigError>("the timeline {} has a time that is not finite", timeline.name);
        }
        start_ = std::min(start_, interval.start);
        end = std::max(end, interval.end);
      }
    }
    length_ = end > start_ ? end - start_ : 1;
    if (!std::isfinite(start_)) start_ = 0;
  }

  std::string run() {
    const double rows_end = kTop + kRow * static_cast<double>(timeline_.rows.size());
    put("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" "
        "viewBox=\"0 0 {0} {1}\" font-family=\"Helvetica, Arial, sans-serif\" font-size=\"11\">\n"
        "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
        options_.width, rows_end + kBottom);
    head();
    axis(rows_end);
    const std::vector<RowUse> uses = row_use(timeline_);
    for (size_t rank = 0; rank < timeline_.rows.size(); ++rank) row(rank, uses[rank].idle_share);
    out_ += "</svg>\n";
    return std::move(out_);
  }

 private:
  template <class... Args> void put(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(out_), format, std::forward<Args>(args)...);
  }

  double x(double time) const { return kLeft + (time - start_) / length_ * plot_width_; }

  void head() {
    put("<text x=\"{}\" y=\"20\" font-size=\"15\" font-weight=\"bold\">{}</text>\n", kLeft,
        xml_escaped(options_.title.empty() ? timeline_.name : options_.title));
    std::set<ActionKind> kinds;
    bool other = false;
    for (const auto& row : timeline_.rows) {
      for (const Interval& interval : row) {
        for (const Pass& pass : Passes(interval.action)) kinds.insert(pass.kind);
        other = other || !is_compute(interval.action.kind);
      }
    }
    double at = kLeft;
    const auto entry = [&](const char* label, Colour colour) {
      put("<rect x=\"{:.1f}\" y=\"31\" width=\"12\" height=\"12\" fill=\"{}\"/>"
          "<text x=\"{:.1f}\" y=\"41\">{}</text>\n",
          at, shaded(colour, 0, 1), at + 16, label);
      at += 34 + 5.6 * static_cast<double>(std::char_traits<char>::length(label));
    };
    for (const Look& look : kLooks) {
      if (kinds.contains(look.kind)) entry(look.label, look.colour);
    }
    if (other) entry("communication", kOther);
    if (several_stages()) {
      put("<text x=\"{:.1f}\" y=\"41\" fill=\"#555\">darker: the rank's later stages</text>\n", at);
    }
    put("<text x=\"{}\" y=\"41\" text-anchor=\"end\" fill=\"#555\">idle</text>\n",
        options_.width - 12);
  }

  static std::set<int> stages_of(const std::vector<Interval>& row) {
    std::set<int> stages;
    for (const Interval& interval : row) {
      for (const Pass& pass : Passes(interval.action)) stages.insert(pass.stage);
    }
    return stages;
  }
  bool several_stages() const {
    return std::ranges::any_of(timeline_.rows,
                               [](const auto& row) { return stages_of(row).size() > 1; });
  }

  void axis(double bottom) {
    const double step = tick_step(length_, plot_width_ / 80);
    for (int i = 0; i * step <= length_ * (1 + 1e-9); ++i) {
      const double at = x(start_ + i * step);
      put("<line x1=\"{0:.1f}\" y1=\"{1}\" x2=\"{0:.1f}\" y2=\"{2}\" stroke=\"#ddd\"/>"
          "<text x=\"{0:.1f}\" y=\"{3}\" text-anchor=\"middle\" fill=\"#555\">{4:.4g}</text>\n",
          at, kTop - 4, bottom + 4, bottom + 18, i * step);
    }
    const std::string unit = options_.unit.empty() ? "" : " in " + xml_escaped(options_.unit);
    put("<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\" fill=\"#555\">time{}</text>\n",
        kLeft + plot_width_ / 2, bottom + 34, unit);
  }

  void row(size_t rank, double idle_share) {
    const double top = kTop + kRow * static_cast<double>(rank);
    put("<rect x=\"{}\" y=\"{}\" width=\"{:.1f}\" height=\"{}\" fill=\"#f1f1f1\"/>\n", kLeft, top,
        plot_width_, kBox);
    put("<text x=\"{}\" y=\"{}\" text-anchor=\"end\">rank {}</text>\n", kLeft - 8, top + 16, rank);
    put("<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{:.1f} %</text>\n", options_.width - 12,
        top + 16, 100 * idle_share);
    const std::set<int> stages = stages_of(timeline_.rows[rank]);
    for (const Interval& interval : timeline_.rows[rank]) {
      const Passes passes(interval.action);
      if (passes.size() == 0) {
        box(interval, top + kBox, 4, shaded(kOther, 0, 1), {});
        continue;
      }
      double y = top;
      const double height = kBox / passes.size();
      for (const Pass& pass : passes) {
        const int turn = static_cast<int>(std::distance(stages.begin(), stages.find(pass.stage)));
        const int turns = static_cast<int>(stages.size());
        const std::string ink = turns > 1 && 2 * turn > turns - 1 ? "white" : "black";
        box(interval, y, height, shaded(colour_of(pass.kind), turn, turns), ink, pass.microbatch);
        y += height;
      }
    }
  }

  void box(const Interval& interval, double y, double height, const std::string& fill,
           const std::string& ink, int microbatch = 0) {
    const double left = x(interval.start);
    const double width = std::max(x(interval.end) - left, 0.0);
    const double line = width > 4 ? 0.6 : 0.2;
    put("<rect x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\" fill=\"{}\" "
        "stroke=\"white\" stroke-width=\"{}\"/>",
        left, y, width, height, fill, line);
    const std::string number = fmt::format("{}", microbatch);
    const bool fits = kDigit * static_cast<double>(number.size()) + 1 <= width;
    if (!ink.empty() && fits) {
      put("<text x=\"{:.2f}\" y=\"{:.2f}\" text-anchor=\"middle\" font-size=\"10\" "
          "fill=\"{}\">{}</text>",
          left + width / 2, y + height / 2 + 3.6, ink, number);
    }
    out_ += '\n';
  }

  const Timeline& timeline_;
  const DrawOptions& options_;
  double plot_width_;
  double start_ = 0;
  double length_ = 1;
  std::string out_;
};

} // namespace

std::string draw_svg(const Timeline& timeline, const DrawOptions& options) {
  if (options.width < kMinWidth) {
    raise<ConfigError>("a drawing of {} pixels is too narrow\n  try: {} or more", options.width,
                       kMinWidth);
  }
  return Drawing(timeline, options).run();
}

} // namespace pentatron::pipeline
