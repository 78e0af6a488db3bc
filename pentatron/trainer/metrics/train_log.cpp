#include "pentatron/trainer/metrics/train_log.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <ctime>

#include <fmt/format.h>

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

} // namespace

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
  for (const auto& [name, value] : log.losses) out(" {}: {:.6E} |", name, value);
  if (log.loss_scale) out(" loss scale: {:.1f} |", *log.loss_scale);
  if (log.grad_norm) out(" grad norm: {:.3f} |", *log.grad_norm);
  if (log.num_zeros) out(" num zeros: {} |", *log.num_zeros);
  if (log.params_norm) out(" params norm: {:.3f} |", *log.params_norm);
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

std::string evaluation_box(const std::string& title,
                           const std::vector<std::pair<std::string, double>>& losses) {
  std::string line = fmt::format(" {} | ", title);
  for (const auto& [name, value] : losses) {
    line += fmt::format("{0} value: {1:.6E} | {0} PPL: {2:.6E} | ", name, value, perplexity(value));
  }
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

} // namespace pentatron::trainer
