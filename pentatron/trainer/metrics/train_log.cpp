#include "pentatron/trainer/metrics/train_log.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <ctime>

#include <fmt/format.h>

#include "pentatron/base/format.h"

namespace pentatron::trainer {

namespace {

std::string timestamp(std::chrono::system_clock::time_point time) {
  const auto micros =
      std::chrono::duration_cast<std::chrono::microseconds>(time.time_since_epoch()).count();
  const std::time_t seconds = static_cast<std::time_t>(micros / 1'000'000);
  std::tm parts{};
  ::localtime_r(&seconds, &parts);
  return fmt::format("{:04}-{:02}-{:02} {:02}:{:02}:{:02}.{:06}", parts.tm_year + 1900,
                     parts.tm_mon + 1, parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec,
                     micros % 1'000'000);
}

/// A part of the compact line; where not all fit, those of higher rank are left out.
struct LinePart {
  std::string text;
  int rank = 0; ///< 0: stays
};

std::string short_loss(std::optional<double> loss) {
  if (!loss) return "undefined";
  return std::abs(*loss) < 1e4 && (std::abs(*loss) >= 1e-3 || *loss == 0)
             ? fmt::format("{:.4f}", *loss)
             : fmt::format("{:.3e}", *loss);
}

std::string progress_of(int64_t iteration, int64_t train_iters) {
  if (train_iters < iteration) return fmt::format("iteration {}", iteration); // only evaluates
  const std::string total = fmt::to_string(train_iters);
  return fmt::format("iteration {:>{}}/{}", iteration, total.size(), total);
}

} // namespace

std::string rate_text(double per_second) {
  if (!std::isfinite(per_second)) return "?";
  constexpr std::array kUnits{"", "k", "M", "G", "T"};
  size_t unit = 0;
  while (std::abs(per_second) >= 999.5 && unit + 1 < kUnits.size()) {
    per_second /= 1000;
    ++unit;
  }
  const double size = std::abs(per_second);
  const int digits = size >= 99.95 || (unit == 0 && size >= 10) ? 0 : size >= 9.995 ? 1 : 2;
  return fmt::format("{:.{}f}{}", per_second, digits, kUnits[unit]);
}

std::string short_duration(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0 || seconds > 1e10) return "?";
  if (seconds < 9.95) return fmt::format("{:.1f}s", seconds);
  const int64_t s = std::llround(seconds);
  if (s < 60) return fmt::format("{}s", s);
  if (s < 3600) return fmt::format("{}m{:02}s", s / 60, s % 60);
  if (s < 86400) return fmt::format("{}h{:02}m", s / 3600, s / 60 % 60);
  return fmt::format("{}d{:02}h", s / 86400, s / 3600 % 24);
}

/// " (lm 5.5480, sop 0.6925)" behind a total; empty if that is the only term.
std::string terms_text(const std::vector<std::pair<std::string, std::optional<double>>>& losses) {
  std::string terms;
  for (size_t i = 1; i < losses.size(); ++i) {
    std::string_view name = losses[i].first;
    if (name.ends_with(" loss")) name.remove_suffix(5);
    terms += fmt::format("{}{} {}", terms.empty() ? "" : ", ", name, short_loss(losses[i].second));
  }
  return terms.empty() ? "" : fmt::format(" ({})", terms);
}

std::string loss_text(std::optional<double> loss, bool targets) {
  return targets ? "loss " + short_loss(loss) : "no targets";
}

std::string compact_line(const TrainLog& log, size_t columns) {
  std::vector<LinePart> parts = {{progress_of(log.iteration, log.train_iters)}};
  const auto add = [&](int rank, std::string text) { parts.push_back({std::move(text), rank}); };
  const bool targets = !log.losses.empty();
  add(0, loss_text(targets ? log.losses[0].second : std::nullopt, targets));
  if (log.grad_norm) add(1, fmt::format("grad norm {:.3g}", *log.grad_norm));
  if (log.logits.most) add(2, fmt::format("max logit {:.3g}", *log.logits.most));
  add(4, fmt::format("lr {:.2e}", log.learning_rate));
  if (log.tokens_per_s) add(3, fmt::format("{} tokens/s", rate_text(*log.tokens_per_s)));
  if (log.mfu) add(5, fmt::format("MFU {:.1f}%", *log.mfu * 100));
  if (log.memory_bytes && *log.memory_bytes > 0)
    add(7, format_bytes(static_cast<double>(*log.memory_bytes)));
  if (log.eta_s) add(6, fmt::format("ETA {}", short_duration(*log.eta_s)));
  if (log.loss_scale && *log.loss_scale != 1) add(1, fmt::format("scale {:g}", *log.loss_scale));
  if (log.skipped_iterations > 0) add(0, fmt::format("skipped {}", log.skipped_iterations));
  if (log.nan_iterations > 0) add(0, fmt::format("nan {}", log.nan_iterations));
  if (log.data_wait && *log.data_wait >= 0.05)
    add(8, fmt::format("waits for data {:.0f}%", *log.data_wait * 100));
  size_t needed = 0; // by those that are never left out, and the norm of gradients
  for (const LinePart& part : parts)
    if (part.rank <= 1) needed += part.text.size() + 3;
  if (const std::string terms = terms_text(log.losses); needed + terms.size() <= columns)
    parts[1].text += terms;
  // In the order of their ranks, as many as fit; after one that does not, none, or lines that
  // differ in a digit would show different things.
  std::vector<char> shown(parts.size(), 0);
  size_t size = 0;
  bool full = false;
  for (int rank = 0; rank <= 8; ++rank)
    for (size_t i = 0; i < parts.size(); ++i) {
      if (parts[i].rank != rank) continue;
      const size_t more = parts[i].text.size() + (size == 0 ? 0 : 3);
      full = full || (rank > 0 && size + more > columns);
      if (full) continue;
      shown[i] = 1;
      size += more;
    }
  std::string line;
  for (size_t i = 0; i < parts.size(); ++i)
    if (shown[i] != 0) line += (line.empty() ? "" : " | ") + parts[i].text;
  return line;
}

std::string figures_text(std::optional<double> loss, const Scores& figures) {
  std::string text;
  for (const auto& [name, value] : figures) {
    std::string words = name;
    std::ranges::replace(words, '_', ' ');
    // A correlation with what is constant; in a loss that is NaN it is not the figure's fault.
    const bool undefined = std::isnan(value) && !(loss && std::isnan(*loss));
    text += fmt::format("{}{} {}", text.empty() ? "" : " | ", words,
                        undefined ? "undefined" : fmt::format("{:.4f}", value));
  }
  return text.empty() && loss ? fmt::format("perplexity {:.4g}", perplexity(*loss)) : text;
}

std::string compact_evaluation(int64_t iteration, int64_t train_iters, std::optional<double> loss,
                               const Scores& figures) {
  return fmt::format("{} | validation loss {} | {}", progress_of(iteration, train_iters),
                     short_loss(loss), figures_text(loss, figures));
}

std::string train_line(const TrainLog& log) {
  fmt::memory_buffer line;
  const auto out = [&](auto format, const auto&... values) {
    fmt::format_to(std::back_inserter(line), fmt::runtime(format), values...);
  };
  out(" [{}] iteration {:8}/{:8} |", timestamp(log.time), log.iteration, log.train_iters);
  out(" consumed samples: {:12} |", log.consumed_samples);
  if (log.skipped_samples > 0) out(" skipped samples: {:12} |", log.skipped_samples);
  out(" elapsed time per iteration (ms): {:.1f} |", log.step_time_s * 1e3);
  if (log.tflops) out(" throughput per GPU (TFLOP/s/GPU): {:.1f} |", *log.tflops);
  out(" learning rate: {:.6E} | global batch size: {:5} |", log.learning_rate,
      log.global_batch_size);
  for (const auto& [name, value] : log.losses)
    if (value) out(" {}: {:.6E} |", name, *value);
  if (log.loss_scale) out(" loss scale: {:.1f} |", *log.loss_scale);
  if (log.grad_norm) out(" grad norm: {:.3f} |", *log.grad_norm);
  if (log.num_zeros) out(" num zeros: {} |", *log.num_zeros);
  if (log.params_norm) out(" params norm: {:.3f} |", *log.params_norm);
  if (log.logits.most) out(" max attention logit: {:.3f} |", *log.logits.most);
  out(" number of skipped iterations: {:3} | number of nan iterations: {:3} |",
      log.skipped_iterations, log.nan_iterations);
  if (log.tokens_per_s) out(" tokens/s: {:.1f} |", *log.tokens_per_s);
  if (log.tflops && *log.tflops < 1) out(" GFLOP/s: {:.1f} |", *log.tflops * 1e3);
  if (log.mfu) out(" MFU: {:.1f}% |", *log.mfu * 100);
  if (log.hfu) out(" HFU: {:.1f}% |", *log.hfu * 100);
  if (log.memory_bytes) out(" memory: {} |", bytes_text(static_cast<double>(*log.memory_bytes)));
  if (log.data_wait) out(" data wait: {:.1f}% |", *log.data_wait * 100);
  if (log.eta_s) out(" ETA: {} |", clock_text(*log.eta_s));
  return fmt::to_string(line);
}

double perplexity(double loss) {
  return std::exp(loss < 20 || std::isnan(loss) ? loss : 20.0);
}

std::string evaluation_box(const std::string& title, const std::string& name,
                           std::optional<double> loss) {
  std::string line = fmt::format(" {} | ", title);
  if (loss)
    line += fmt::format("{0} value: {1:.6E} | {0} PPL: {2:.6E} | ", name, *loss, perplexity(*loss));
  const std::string rule(line.size() + 1, '-');
  return rule + "\n" + line + "\n" + rule;
}

std::string clock_text(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0 || seconds > 1e12) return "?";
  const int64_t s = std::llround(seconds);
  const int64_t days = s / 86400;
  if (days > 0)
    return fmt::format("{}d {:02}:{:02}:{:02}", days, s / 3600 % 24, s / 60 % 60, s % 60);
  return fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
}

std::string bytes_text(double bytes) {
  static constexpr std::array kUnits{"B", "kB", "MB", "GB", "TB", "PB"};
  size_t unit = 0;
  while (std::abs(bytes) >= 1000 && unit + 1 < kUnits.size()) {
    bytes /= 1000;
    ++unit;
  }
  return fmt::format(fmt::runtime(unit == 0 ? "{:.0f} {}" : "{:.2f} {}"), bytes, kUnits[unit]);
}

std::string exact_text(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  std::array<char, 40> text{};
  const auto [end, error] = std::to_chars(text.data(), text.data() + text.size(), value);
  return std::string(text.data(), end);
}

std::string json_text(double value) {
  return std::isfinite(value) ? exact_text(value) : "null";
}

} // namespace pentatron::trainer
