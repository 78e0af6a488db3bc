#include "pentatron/config/violations.h"

#include <algorithm>
#include <cstdlib>
#include <limits>

#include "pentatron/base/error.h"

namespace pentatron::config {

void Violations::add(std::string_view path, std::string cause, std::string suggestion) {
  add_at(where(path), path, std::move(cause), std::move(suggestion));
}

void Violations::add_at(std::string_view where, std::string_view path, std::string cause,
                        std::string suggestion) {
  list_.push_back({std::string(path), std::string(where), std::move(cause), std::move(suggestion)});
}

void Violations::assigned(std::string_view path, std::string_view where) {
  assigned_[std::string(path)] = where;
}

std::string Violations::where(std::string_view path) const {
  const auto it = assigned_.find(path);
  return it == assigned_.end() ? std::string() : it->second;
}

bool Violations::any_in(std::string_view section) const {
  return std::ranges::any_of(list_, [&](const Violation& v) {
    return v.path == section || v.path.starts_with(join(section, ""));
  });
}

std::string Violations::text() const {
  std::string text;
  if (list_.size() > 1) text = fmt::format("{} problems in the configuration\n", list_.size());
  const std::string_view indent = list_.size() > 1 ? "  " : "";
  for (size_t i = 0; i < list_.size(); ++i) {
    const Violation& v = list_[i];
    if (i > 0) text += '\n';
    text += indent;
    // A setting of the command line is known by the key with which its cause begins.
    const auto begins_with_key = [&] {
      return v.cause.starts_with(v.path) &&
             (v.cause.size() == v.path.size() ||
              std::string_view("=: ").find(v.cause[v.path.size()]) != std::string_view::npos);
    };
    const bool named = v.where.starts_with("override ") && !v.path.empty() && begins_with_key();
    if (!v.where.empty() && !named) text += v.where + ": ";
    text += v.cause;
    if (!v.suggestion.empty()) text += fmt::format("\n{}  try: {}", indent, v.suggestion);
  }
  return text;
}

void Violations::throw_if_any() const {
  if (!empty()) throw ConfigError(text());
}

std::string join(std::string_view section, std::string_view name) {
  return section.empty() ? std::string(name) : fmt::format("{}.{}", section, name);
}

std::string divisors(int64_t n) {
  std::string small, large;
  for (int64_t d = 1; d <= n / d; ++d) {
    if (n % d != 0) continue;
    small += fmt::format("{}{}", d == 1 ? "" : ", ", d);
    if (d != n / d) large = fmt::format(", {}", n / d) + large;
  }
  return small + large;
}

int64_t nearest_divisor(int64_t n, int64_t value) {
  if (n <= 0) return 1;
  int64_t best = 1;
  const auto consider = [&](int64_t d) {
    const int64_t distance = std::abs(d - value);
    const int64_t best_distance = std::abs(best - value);
    if (distance < best_distance || (distance == best_distance && d < best)) best = d;
  };
  for (int64_t d = 1; d <= n / d; ++d) {
    if (n % d != 0) continue;
    consider(d);
    consider(n / d);
  }
  return best;
}

int64_t nearest_multiple(int64_t n, int64_t value) {
  if (n <= 0) return value;
  if (value <= n) return n;
  const int64_t below = value / n * n;
  const bool fits = below <= std::numeric_limits<int64_t>::max() - n;
  return fits && value - below > n - (value - below) ? below + n : below;
}

} // namespace pentatron::config
