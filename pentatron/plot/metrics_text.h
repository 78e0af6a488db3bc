/// Reads metrics.jsonl (docs/monitoring.md), also if it was damaged or changed.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace pentatron::plot {

/// One line: a training step, or an evaluation (`validation_loss` alone).
struct MetricsPoint {
  int64_t iteration = 0;
  std::optional<double> consumed_samples, consumed_tokens, step_time_s;
  std::optional<double> loss, grad_norm, learning_rate, tokens_per_s, mfu, validation_loss;
  std::optional<double> figure; ///< the one that was asked for; NaN where the file has null
  bool training = true;
};

struct MetricsText {
  std::vector<MetricsPoint> points;
  int64_t damaged = 0;       ///< damaged lines, which are skipped
  int64_t first_damaged = 0; ///< its number, from 1; 0: none
  std::string why;           ///< of the first damaged line
  size_t bytes = 0;          ///< of the whole lines that were read
  bool has_later = false;    ///< there are points after `last_iteration`
  /// Names of the numbers in the points, if a figure was asked for; those of experts too.
  std::set<std::string> figures;
};

/// Any bytes. A point whose iteration does not fit between those around it is damaged. Reading ends
/// before the first point of an iteration after `last_iteration`, and before a last line without
/// its end, which may still be written. `figure` is a member whose value is a number, or one of
/// expert_figures().
MetricsText parse_metrics(std::string_view text,
                          int64_t last_iteration = std::numeric_limits<int64_t>::max(),
                          const std::string& figure = {});

/// The points of a file; a last line that is cut off is left out. Warns of other lines that are no
/// points. Throws DataError if the file cannot be read or holds no points, or none with `figure`;
/// then it says which figures there are.
std::vector<MetricsPoint> read_metrics(const std::string& file, const std::string& figure = {});

/// Of all layers with experts: expert_max_load is that of the layer with the largest,
/// expert_entropy that of the layer with the least, expert_unused the sum, expert_dropped the mean.
const std::vector<std::string>& expert_figures();

} // namespace pentatron::plot
