#include "pentatron/plot/metrics_text.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "pentatron/base/error.h"
#include "pentatron/base/json.h"
#include "pentatron/base/log.h"
#include "pentatron/base/mapped_file.h"

namespace pentatron::plot {

namespace {

constexpr JsonLimits kLineLimits{.max_bytes = size_t{1} << 20, .max_depth = 8};

/// How the numbers of layers become one.
enum class Over : unsigned char { kLargest, kLeast, kSum, kMean };
struct ExpertFigure {
  const char *name, *member;
  Over layers;
};
constexpr ExpertFigure kExpertFigures[] = {{"expert_max_load", "max_load", Over::kLargest},
                                           {"expert_entropy", "entropy", Over::kLeast},
                                           {"expert_unused", "unused", Over::kSum},
                                           {"expert_dropped", "dropped", Over::kMean}};

std::optional<double> of_experts(const Json& json, const ExpertFigure& figure) {
  const auto layers = json.find("experts");
  if (layers == json.end() || !layers->is_array() || layers->empty()) return std::nullopt;
  std::vector<double> values;
  for (const Json& layer : *layers)
    values.push_back(json_get<double>(layer, figure.member, "the line"));
  if (figure.layers == Over::kLargest) return std::ranges::max(values);
  if (figure.layers == Over::kLeast) return std::ranges::min(values);
  const double sum = std::accumulate(values.begin(), values.end(), 0.0);
  return figure.layers == Over::kSum ? sum : sum / static_cast<double>(values.size());
}

std::optional<double> figure_of(const Json& json, const std::string& name) {
  for (const ExpertFigure& figure : kExpertFigures)
    if (name == figure.name) return of_experts(json, figure);
  const auto found = json.find(name);
  if (found == json.end()) return std::nullopt;
  if (found->is_null()) return std::numeric_limits<double>::quiet_NaN();
  return found->is_number() ? std::optional(found->get<double>()) : std::nullopt;
}

void add_figures(const Json& json, std::set<std::string>& names) {
  for (const auto& [name, value] : json.items())
    if (value.is_number() && name != "iteration") names.insert(name);
  if (json.contains("experts"))
    for (const ExpertFigure& figure : kExpertFigures) names.insert(figure.name);
}

MetricsPoint point_of(std::string_view line, const std::string& figure,
                      std::set<std::string>& figures) {
  const Json json = parse_json(line, "the line", kLineLimits);
  const auto number = [&](const char* key) -> std::optional<double> {
    const auto found = json.find(key);
    if (found == json.end() || found->is_null()) return std::nullopt;
    return json_get<double>(json, key, "the line");
  };
  if (!json.is_object()) throw DataError("the line is not a JSON object");
  MetricsPoint point;
  point.iteration = json_get<int64_t>(json, "iteration", "the line");
  point.training = !json.contains("validation_loss") || json.contains("loss");
  point.consumed_samples = number("consumed_samples");
  point.consumed_tokens = number("consumed_tokens");
  point.step_time_s = number("step_time_s");
  point.loss = number("loss");
  point.grad_norm = number("grad_norm");
  point.learning_rate = number("learning_rate");
  point.tokens_per_s = number("tokens_per_s");
  point.mfu = number("mfu");
  point.validation_loss = number("validation_loss");
  if (!figure.empty()) {
    point.figure = figure_of(json, figure);
    add_figures(json, figures);
  }
  return point;
}

/// A whole line: its point, or why it is none.
struct Line {
  size_t end = 0; ///< behind its '\n'
  std::optional<MetricsPoint> point;
  std::string why;
};

std::vector<Line> lines_of(std::string_view text, const std::string& figure,
                           std::set<std::string>& figures) {
  std::vector<Line> lines;
  size_t begin = 0;
  for (size_t end = text.find('\n'); end != std::string_view::npos; end = text.find('\n', begin)) {
    Line& line = lines.emplace_back();
    line.end = end + 1;
    try {
      line.point = point_of(text.substr(begin, end - begin), figure, figures);
    } catch (const DataError& error) {
      line.why = error.what();
    }
    begin = end + 1;
  }
  return lines;
}

/// A run writes in the order of iterations. Of the points that break it, the fewest possible are
/// damaged: those outside the longest sequence that never falls.
void drop_out_of_order(std::vector<Line>& lines) {
  const auto iteration = [&](size_t i) { return lines[i].point->iteration; };
  constexpr size_t kNone = std::numeric_limits<size_t>::max();
  std::vector<size_t> tails; // [n]: the line that ends a sequence of n + 1 with the least iteration
  std::vector<size_t> before(lines.size(), kNone);
  for (size_t i = 0; i < lines.size(); ++i) {
    if (!lines[i].point) continue;
    const auto tail =
        std::upper_bound(tails.begin(), tails.end(), iteration(i),
                         [&](int64_t value, size_t line) { return value < iteration(line); });
    if (tail != tails.begin()) before[i] = *(tail - 1);
    if (tail == tails.end())
      tails.push_back(i);
    else
      *tail = i;
  }
  std::vector<char> ordered(lines.size(), 0);
  for (size_t i = tails.empty() ? kNone : tails.back(); i != kNone; i = before[i]) ordered[i] = 1;
  for (size_t i = 0; i < lines.size(); ++i)
    if (lines[i].point && ordered[i] == 0) {
      lines[i].why = fmt::format("iteration {} is out of order", iteration(i));
      lines[i].point.reset();
    }
}

} // namespace

MetricsText parse_metrics(std::string_view text, int64_t last_iteration,
                          const std::string& figure) {
  MetricsText result;
  std::vector<Line> lines = lines_of(text, figure, result.figures);
  drop_out_of_order(lines);
  for (size_t i = 0; i < lines.size(); ++i) {
    if (lines[i].point && lines[i].point->iteration > last_iteration) {
      result.has_later = true;
      break;
    }
    if (lines[i].point) {
      result.points.push_back(*lines[i].point);
    } else if (result.damaged++ == 0) {
      result.first_damaged = static_cast<int64_t>(i) + 1;
      result.why = lines[i].why;
    }
    result.bytes = lines[i].end;
  }
  return result;
}

const std::vector<std::string>& expert_figures() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const ExpertFigure& figure : kExpertFigures) all.emplace_back(figure.name);
    return all;
  }();
  return names;
}

std::vector<MetricsPoint> read_metrics(const std::string& file, const std::string& figure) {
  const MappedFile mapped(file);
  MetricsText read = parse_metrics(mapped.text(), std::numeric_limits<int64_t>::max(), figure);
  if (read.points.empty() && read.damaged > 0)
    raise<DataError>("{} contains no metrics: line {} is not a line of metrics: {}", file,
                     read.first_damaged, read.why);
  if (read.points.empty()) raise<DataError>("{} contains no metrics yet", file);
  if (read.damaged > 0)
    log::warning("{}: {} damaged {} left out; the first is line {}: {}", file, read.damaged,
                 read.damaged == 1 ? "line is" : "lines are", read.first_damaged, read.why);
  const auto has = [](const MetricsPoint& p) { return p.figure && std::isfinite(*p.figure); };
  if (!figure.empty() && std::ranges::none_of(read.points, has))
    raise<DataError>("{} contains no values of {}\n  try: --y with one of {}", file, figure,
                     fmt::join(read.figures, ", "));
  return std::move(read.points);
}

} // namespace pentatron::plot
