/// Reads metrics.jsonl (docs/monitoring.md): what a run writes, and what others may have changed.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace pentatron::plot {

/// One line: a training step, or an evaluation (`validation_loss` alone).
struct MetricsPoint {
  int64_t iteration = 0;
  std::optional<double> consumed_samples, consumed_tokens, step_time_s;
  std::optional<double> loss, grad_norm, learning_rate, tokens_per_s, mfu, validation_loss;
  bool training = true;
};

struct MetricsText {
  std::vector<MetricsPoint> points;
  int64_t bad_line = 0;   ///< from 1: the first line that is no point; reading ends there. 0: none
  bool last_line = false; ///< nothing follows the bad line: it may still be written
  std::string why;        ///< of the bad line
};

/// Any bytes. Reading ends before the first line of an iteration after `last_iteration`.
MetricsText parse_metrics(std::string_view text,
                          int64_t last_iteration = std::numeric_limits<int64_t>::max());

/// The points of a file; a last line that is cut off is left out. Throws DataError with the number
/// of the first other line that is no point, or if the file cannot be read or holds no points.
std::vector<MetricsPoint> read_metrics(const std::string& file);

} // namespace pentatron::plot
