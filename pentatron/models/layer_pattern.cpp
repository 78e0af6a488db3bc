#include "pentatron/models/layer_pattern.h"

#include <algorithm>
#include <charconv>

#include <fmt/format.h>

#include "pentatron/base/error.h"
#include "pentatron/base/format.h"

namespace pentatron::models {

namespace {

[[noreturn]] void refuse(std::string_view text, std::string_view why) {
  raise<ConfigError>("moe_layer_freq=\"{}\" {}\n  try: moe_layer_freq=1", text, why);
}

/// sum: term ('+' term)*; term: (list | '(' sum ')') ['*' number]; list: '[' digit (',' digit)* ']'
class Parser {
 public:
  Parser(std::string_view text, int64_t layers) : text_(text), left_(text), layers_(layers) {}

  std::vector<bool> parse() {
    std::vector<bool> all = sum(0);
    if (!left_.empty()) fail();
    return all;
  }

 private:
  static constexpr int kDeepest = 8;

  [[noreturn]] void fail() const {
    refuse(text_, "is neither a number nor a list of 0 and 1 such as [0]*3+[1]*58");
  }
  bool next(char c) {
    while (left_.starts_with(' ')) left_.remove_prefix(1);
    if (!left_.starts_with(c)) return false;
    left_.remove_prefix(1);
    while (left_.starts_with(' ')) left_.remove_prefix(1);
    return true;
  }
  void expect(char c) {
    if (!next(c)) fail();
  }
  int64_t number() {
    int64_t value = 0;
    const auto [end, error] = std::from_chars(left_.data(), left_.data() + left_.size(), value);
    if (error != std::errc() || value < 0) fail();
    left_.remove_prefix(static_cast<size_t>(end - left_.data()));
    return value;
  }
  void check(size_t count, int64_t times) const {
    if (times > layers_ || static_cast<int64_t>(count) * times > layers_)
      refuse(text_, fmt::format("lists more layers than num_layers={}", layers_));
  }
  std::vector<bool> term(int depth) {
    std::vector<bool> one;
    if (next('(')) {
      if (depth == kDeepest) fail();
      one = sum(depth + 1);
      expect(')');
    } else {
      expect('[');
      do {
        const int64_t value = number();
        if (value > 1) fail();
        one.push_back(value == 1);
        check(one.size(), 1);
      } while (next(','));
      expect(']');
    }
    if (!next('*')) return one;
    const int64_t times = number();
    check(one.size(), times);
    std::vector<bool> repeated;
    for (int64_t i = 0; i < times; ++i) repeated.insert(repeated.end(), one.begin(), one.end());
    return repeated;
  }
  std::vector<bool> sum(int depth) {
    std::vector<bool> all = term(depth);
    while (next('+')) {
      const std::vector<bool> more = term(depth);
      check(all.size() + more.size(), 1);
      all.insert(all.end(), more.begin(), more.end());
    }
    return all;
  }

  std::string_view text_, left_;
  int64_t layers_;
};

} // namespace

namespace {

/// N of "N"; 0: the text is no such number.
int64_t every(std::string_view text) {
  int64_t n = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
  return error == std::errc() && end == text.data() + text.size() && n > 0 ? n : 0;
}

} // namespace

std::vector<bool> parse_layer_pattern(std::string_view text, int64_t layers) {
  if (const int64_t n = every(text); n > 0) {
    std::vector<bool> pattern(static_cast<size_t>(layers));
    for (int64_t i = 0; i < layers; i += n) pattern[static_cast<size_t>(i)] = true;
    return pattern;
  }
  std::vector<bool> pattern = Parser(text, std::min(layers, kLongestLayerList)).parse();
  if (std::ssize(pattern) != layers)
    refuse(text, fmt::format("lists {}, but num_layers={}", counted(std::ssize(pattern), "layer"),
                             layers));
  return pattern;
}

bool is_in_layer_pattern(std::string_view text, int64_t layers, int64_t index) {
  if (const int64_t n = every(text); n > 0) return index % n == 0;
  return parse_layer_pattern(text, layers)[static_cast<size_t>(index)];
}

} // namespace pentatron::models
