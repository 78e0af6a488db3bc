#include "pentatron/base/nearest.h"

#include <algorithm>
#include <vector>

namespace pentatron {

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before[j - 2] + 1);
      }
    }
    std::swap(before, last);
    std::swap(last, row);
  }
  return last[b.size()];
}

namespace {

bool is_separator(char c) {
  return c == '.' || c == '_' || c == '-';
}

/// In lower case: "max", "new" and "tokens" of "--max-new-tokens".
std::vector<std::string> words(std::string_view text) {
  std::vector<std::string> all;
  bool inside = false;
  for (const char c : text) {
    if (is_separator(c)) {
      inside = false;
      continue;
    }
    if (!inside) all.emplace_back();
    all.back() += c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
    inside = true;
  }
  return all;
}

/// Lower case, without separators.
std::string folded(std::string_view text) {
  std::string out;
  for (const std::string& word : words(text)) out += word;
  return out;
}

/// What other programs call a value, folded. Their names of keys: config/common_names.h.
struct Synonym {
  std::string_view typed, meant;
};
constexpr Synonym kSynonyms[] = {
    {"gpu", "auto"}, // which takes one that is there
    {"nvidia", "auto"},       {"bfloat16", "bf16"},    {"half", "fp16"},
    {"float16", "fp16"},      {"half", "bf16"}, // the 16-bit type where there is no fp16
    {"float16", "bf16"},      {"fp16", "bf16"},        {"float", "fp32"},
    {"float32", "fp32"},      {"single", "fp32"},      {"double", "fp64"},
    {"float64", "fp64"},      {"gelunew", "gelutanh"}, {"gelupytorchtanh", "gelutanh"},
    {"gelufast", "gelutanh"}, {"gelupython", "gelu"},  {"relu2", "squaredrelu"},
    {"swish", "silu"},        {"rotary", "rope"},      {"inversesqrt", "inversesquareroot"},
    {"true", "on"},           {"false", "off"},
};

/// Whether all words of `part`, at least two, are words of `text` in the same order.
bool has_words(std::string_view text, std::string_view part) {
  const std::vector<std::string> wanted = words(part);
  size_t found = 0;
  for (const std::string& word : words(text))
    if (found < wanted.size() && word == wanted[found]) ++found;
  return wanted.size() >= 2 && found == wanted.size();
}

} // namespace

std::optional<size_t> nearness(std::string_view typed, std::string_view candidate) {
  const std::string a = folded(typed), b = folded(candidate);
  if (a.empty()) return std::nullopt;
  if (a == b) return 0;
  size_t earlier = 0; // of several meanings the first is the nearest
  for (const Synonym& synonym : kSynonyms) {
    if (synonym.typed != a) continue;
    if (synonym.meant == b) return earlier;
    ++earlier;
  }
  const size_t longer = std::max(a.size(), b.size());
  const size_t limit = longer >= 5 ? longer / 3 : a[0] == b[0] && longer > 2 ? 1 : 0;
  std::optional<size_t> best;
  const auto consider = [&best](bool near, size_t distance) {
    if (near && (!best || distance < *best)) best = distance;
  };
  const size_t distance = edit_distance(a, b);
  consider(distance <= limit, distance);
  consider(a.size() >= 3 && b.starts_with(a), 1);
  consider(has_words(candidate, typed), 1);
  consider(a.size() >= 4 && b.ends_with(a), 2);
  consider(b.size() >= 4 && a.starts_with(b), 3);
  return best;
}

std::string nearest(std::string_view typed, std::span<const std::string> candidates) {
  const std::string* best = nullptr;
  size_t best_distance = 0;
  for (const std::string& candidate : candidates) {
    const std::optional<size_t> distance = nearness(typed, candidate);
    if (distance && (best == nullptr || *distance < best_distance)) {
      best = &candidate;
      best_distance = *distance;
    }
  }
  return best == nullptr ? std::string() : *best;
}

} // namespace pentatron
