#include "pentatron/base/format.h"

#include <array>
#include <charconv>
#include <chrono>
#include <cmath>
#include <ctime>
#include <string_view>

#include <fmt/format.h>

namespace pentatron {

namespace {

/// Three significant digits of a number that is below 1000 once rounded.
std::string three_digits(double v) {
  const double magnitude = std::abs(v);
  if (magnitude < 9.995) return fmt::format("{:.2f}", v);
  return magnitude < 99.95 ? fmt::format("{:.1f}", v) : fmt::format("{:.0f}", v);
}

/// Divides by `base` until the rounded value is below it; returns the number of divisions.
size_t scale(double& value, double base, size_t limit) {
  size_t k = 0;
  while (k + 1 < limit && std::abs(value) >= base * 0.9995) {
    value /= base;
    ++k;
  }
  return k;
}

} // namespace

std::string noun_for(int64_t count, std::string_view one, std::string_view many) {
  if (count == 1) return std::string(one);
  return many.empty() ? std::string(one) + "s" : std::string(many);
}

std::string counted(int64_t count, std::string_view one, std::string_view many) {
  return fmt::format("{} {}", count, noun_for(count, one, many));
}

std::string format_duration(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0 || seconds > 1e12) return "?";
  if (seconds > 0 && seconds < 0.09995) return three_digits(seconds * 1000) + "ms";
  if (seconds < 9.995) return fmt::format("{:.2f}s", seconds);
  if (seconds < 59.95) return fmt::format("{:.1f}s", seconds);
  const auto s = static_cast<int64_t>(std::llround(seconds));
  const int64_t m = s / 60;
  const int64_t h = m / 60;
  if (h >= 24) return fmt::format("{}d {:02}h {:02}m", h / 24, h % 24, m % 60);
  if (h > 0) return fmt::format("{}h {:02}m {:02}s", h, m % 60, s % 60);
  return fmt::format("{}m {:02}s", m, s % 60);
}

std::string format_bytes(double bytes) {
  static constexpr std::array<std::string_view, 7> kUnits = {"B",   "KiB", "MiB", "GiB",
                                                             "TiB", "PiB", "EiB"};
  if (!std::isfinite(bytes)) return "?";
  const size_t k = scale(bytes, 1024, kUnits.size());
  return k == 0 ? fmt::format("{:.0f} B", bytes) : fmt::format("{:.1f} {}", bytes, kUnits[k]);
}

std::optional<uint64_t> parse_bytes(std::string_view text) {
  if (text.empty() || text[0] < '0' || text[0] > '9') return std::nullopt;
  double value = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed);
  if (error != std::errc()) return std::nullopt;
  std::string unit;
  for (const char c : std::string_view(end, text.data() + text.size()))
    if (c != ' ') unit += static_cast<char>(c >= 'a' && c <= 'z' ? c - 32 : c);
  if (unit.ends_with('B')) unit.pop_back();
  double base = 1000;
  if (unit.size() == 2 && unit[1] == 'I') {
    base = 1024;
    unit.pop_back();
  }
  const size_t power = unit.empty() ? 0 : std::string_view("KMGT").find(unit) + 1;
  if (unit.size() > 1 || (!unit.empty() && power == 0)) return std::nullopt;
  value *= std::pow(base, static_cast<double>(power));
  if (value >= 0x1p64) return std::nullopt;
  return static_cast<uint64_t>(value);
}

std::string format_count(double count) {
  static constexpr std::array<std::string_view, 5> kUnits = {"", "K", "M", "B", "T"};
  if (!std::isfinite(count)) return "?";
  const bool whole = count == std::trunc(count);
  const size_t k = scale(count, 1000, kUnits.size());
  if (k == 0 && whole) return fmt::format("{:.0f}", count);
  return three_digits(count) + std::string(kUnits[k]);
}

std::string format_si(double value) {
  static constexpr std::array<std::string_view, 7> kUnits = {"", "K", "M", "G", "T", "P", "E"};
  if (!std::isfinite(value)) return "?";
  const size_t k = scale(value, 1000, kUnits.size());
  return fmt::format("{} {}", three_digits(value), kUnits[k]);
}

std::string format_grouped(int64_t value) {
  const std::string digits = fmt::to_string(value);
  std::string out;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0 && digits[i - 1] != '-') out += ',';
    out += digits[i];
  }
  return out;
}

double eta_s(double done, double total, double elapsed_s) {
  if (!(done > 0) || !(elapsed_s >= 0)) return -1;
  return total <= done ? 0 : elapsed_s * (total - done) / done;
}

double monotonic_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::string utc_timestamp() {
  const std::time_t now = std::time(nullptr);
  std::tm parts = {};
  ::gmtime_r(&now, &parts);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}Z", parts.tm_year + 1900, parts.tm_mon + 1,
                     parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec);
}

} // namespace pentatron
