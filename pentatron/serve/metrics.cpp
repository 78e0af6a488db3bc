#include "pentatron/serve/metrics.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace pentatron::serve {

Histogram::Histogram(std::vector<double> upper_bounds)
    : bounds_(std::move(upper_bounds)), counts_(bounds_.size() + 1, 0) {}

void Histogram::add(double seconds) {
  const auto bucket = std::ranges::lower_bound(bounds_, seconds) - bounds_.begin();
  const std::lock_guard lock(mutex_);
  ++counts_[static_cast<size_t>(bucket)];
  sum_ += seconds;
}

std::string Histogram::lines(const std::string& name, const std::string& help) const {
  const std::lock_guard lock(mutex_);
  std::string text = fmt::format("# HELP {0} {1}\n# TYPE {0} histogram\n", name, help);
  int64_t count = 0;
  for (size_t i = 0; i < counts_.size(); ++i) {
    count += counts_[i];
    text += fmt::format("{}_bucket{{le=\"{}\"}} {}\n", name,
                        i < bounds_.size() ? fmt::format("{}", bounds_[i]) : "+Inf", count);
  }
  return text + fmt::format("{0}_sum {1}\n{0}_count {2}\n", name, sum_, count);
}

namespace {

const std::vector<double> kTokenBounds = {0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5};
const std::vector<double> kRequestBounds = {0.01, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 300};

std::string number(const char* name, const char* type, const char* help, int64_t value) {
  return fmt::format("# HELP pentatron_{0} {1}\n# TYPE pentatron_{0} {2}\npentatron_{0} {3}\n",
                     name, help, type, value);
}

} // namespace

Metrics::Metrics()
    : first_token_s(kRequestBounds), next_token_s(kTokenBounds), request_s(kRequestBounds),
      pass_s(kTokenBounds) {}

void Metrics::answered(const std::string& route, int status) {
  const std::lock_guard lock(mutex_);
  ++answers_[{route, status}];
}

std::string Metrics::text() const {
  std::string text;
  const auto total = [&](const char* name, const char* help, const Count& count) {
    text += number(name, "counter", help, count);
  };
  const auto now = [&](const char* name, const char* help, const Count& count) {
    text += number(name, "gauge", help, count);
  };
  text += "# HELP pentatron_http_requests_total HTTP requests answered, by path and status.\n"
          "# TYPE pentatron_http_requests_total counter\n";
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [key, count] : answers_)
      text += fmt::format("pentatron_http_requests_total{{path=\"{}\",status=\"{}\"}} {}\n",
                          key.first, key.second, count);
  }
  total("prompt_tokens_total", "Prompt tokens of started texts.", prompt_tokens);
  total("reused_tokens_total", "Prompt tokens whose keys and values were reused from the cache.",
        reused_tokens);
  total("generated_tokens_total", "New tokens.", new_tokens);
  total("passes_total", "Forward passes of the model.", passes);
  total("texts_finished_total", "Completed texts.", finished);
  total("texts_cancelled_total", "Texts whose client disconnected.", cancelled);
  total("texts_failed_total", "Texts that ended with a server error.", failed);
  total("texts_preempted_total", "Times that a text released its cache memory for older texts.",
        preempted);
  total("connections_refused_total", "Connections refused because too many were open.",
        refused_connections);
  now("texts_running", "Texts that are being generated.", running);
  now("texts_waiting", "Texts in the queue.", waiting);
  now("connections", "Open connections.", connections);
  now("cache_pages_used", "Cache pages used by running texts.", pages_used);
  now("cache_pages_held", "Cache pages that have content.", pages_held);
  now("cache_pages", "Cache pages.", pages_limit);
  text += first_token_s.lines("pentatron_time_to_first_token_seconds",
                              "Time from a request to its first new token.");
  text += next_token_s.lines("pentatron_time_per_token_seconds",
                             "Time between two new tokens of a text.");
  text += request_s.lines("pentatron_text_seconds", "Time from a request to the end of a text.");
  text += pass_s.lines("pentatron_pass_seconds", "Time of a forward pass.");
  return text;
}

} // namespace pentatron::serve
