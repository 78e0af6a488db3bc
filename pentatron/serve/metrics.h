/// Metrics of a server in Prometheus format.
///
/// Source: https://prometheus.io/docs/instrumenting/exposition_formats (text format 0.0.4).
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <vector>

namespace pentatron::serve {

/// Counts of durations in buckets. Safe for all threads.
class Histogram {
 public:
  explicit Histogram(std::vector<double> upper_bounds);
  void add(double seconds);
  /// The lines of a metric.
  std::string lines(const std::string& name, const std::string& help) const;

 private:
  std::vector<double> bounds_;
  mutable std::mutex mutex_;
  std::vector<int64_t> counts_;
  double sum_ = 0;
};

/// Safe for all threads.
class Metrics {
 public:
  Metrics();

  using Count = std::atomic<int64_t>;
  Count prompt_tokens = 0, reused_tokens = 0, new_tokens = 0; ///< sums
  Count passes = 0, preempted = 0, finished = 0, cancelled = 0, failed = 0;
  Count running = 0, waiting = 0, pages_used = 0, pages_held = 0, pages_limit = 0; ///< now
  Count connections = 0, refused_connections = 0;
  Histogram first_token_s, next_token_s, request_s, pass_s;

  /// An answer with an HTTP status was begun.
  void answered(const std::string& route, int status);
  std::string text() const;

 private:
  mutable std::mutex mutex_;
  std::map<std::pair<std::string, int>, int64_t> answers_;
};

} // namespace pentatron::serve
