#include "pentatron/plot/metrics_text.h"

#include "pentatron/base/error.h"
#include "pentatron/base/json.h"
#include "pentatron/base/mapped_file.h"

namespace pentatron::plot {

namespace {

constexpr JsonLimits kLineLimits{.max_bytes = size_t{1} << 20, .max_depth = 8};

MetricsPoint point_of(std::string_view line) {
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
  return point;
}

} // namespace

MetricsText parse_metrics(std::string_view text, int64_t last_iteration) {
  MetricsText result;
  int64_t number = 0;
  while (!text.empty()) {
    ++number;
    const size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
    try {
      if (end == std::string_view::npos) throw DataError("the line has no end");
      MetricsPoint point = point_of(line);
      if (point.iteration > last_iteration) break;
      result.points.push_back(point);
    } catch (const DataError& error) {
      result.bad_line = number;
      result.last_line = text.empty();
      result.why = error.what();
      break;
    }
  }
  return result;
}

std::vector<MetricsPoint> read_metrics(const std::string& file) {
  const MappedFile mapped(file);
  MetricsText read = parse_metrics(mapped.text());
  if (read.bad_line > 0 && !read.last_line)
    raise<DataError>("line {} of {} is not a line of metrics: {}", read.bad_line, file, read.why);
  if (read.points.empty()) raise<DataError>("{} contains no metrics yet", file);
  return std::move(read.points);
}

} // namespace pentatron::plot
