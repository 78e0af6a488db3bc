#include "pentatron/plot/metrics_text.h"

#include "pentatron/base/error.h"
#include "pentatron/base/json.h"
#include "pentatron/base/log.h"
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
  for (size_t end = text.find('\n'); end != std::string_view::npos;
       end = text.find('\n', result.bytes)) {
    ++number;
    try {
      const MetricsPoint point = point_of(text.substr(result.bytes, end - result.bytes));
      if (point.iteration > last_iteration) break;
      result.points.push_back(point);
    } catch (const DataError& error) {
      if (result.damaged++ == 0) {
        result.first_damaged = number;
        result.why = error.what();
      }
    }
    result.bytes = end + 1;
  }
  return result;
}

std::vector<MetricsPoint> read_metrics(const std::string& file) {
  const MappedFile mapped(file);
  MetricsText read = parse_metrics(mapped.text());
  if (read.points.empty() && read.damaged > 0)
    raise<DataError>("{} contains no metrics: line {} is not a line of metrics: {}", file,
                     read.first_damaged, read.why);
  if (read.points.empty()) raise<DataError>("{} contains no metrics yet", file);
  if (read.damaged > 0)
    log::warning("{}: {} damaged {} left out; the first is line {}: {}", file, read.damaged,
                 read.damaged == 1 ? "line is" : "lines are", read.first_damaged, read.why);
  return std::move(read.points);
}

} // namespace pentatron::plot
