#include "pentatron/optim/param_group.h"

#include <cmath>
#include <cstdlib>
#include <sstream>

#include <fmt/format.h>

#include "pentatron/base/error.h"
#include "pentatron/base/text.h"

namespace pentatron::optim {

namespace {

std::optional<double> factor(const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  const bool whole = !text.empty() && end == text.c_str() + text.size();
  return whole && std::isfinite(value) && value >= 0 ? std::optional(value) : std::nullopt;
}

} // namespace

std::optional<ParamGroup> parse_param_group(const std::string& text) {
  std::istringstream words(text);
  ParamGroup group;
  std::string word;
  words >> group.pattern;
  bool says = false;
  while (words >> word) {
    const size_t equals = word.find('=');
    const std::string name = word.substr(0, equals);
    const auto value = equals == std::string::npos ? std::nullopt : factor(word.substr(equals + 1));
    if (!value || (name != "lr_mult" && name != "wd_mult")) return std::nullopt;
    if (name == "lr_mult")
      group.lr_mult = *value;
    else
      group.wd_mult = *value;
    says = true;
  }
  if (!says || group.pattern.find('=') != std::string::npos) return std::nullopt;
  return group;
}

void check_param_groups(const std::vector<std::string>& groups, std::string_view key,
                        config::Violations& violations) {
  for (const std::string& text : groups) {
    if (parse_param_group(text)) continue;
    violations.add(key,
                   fmt::format("{} contains \"{}\", which is not a pattern of names followed by "
                               "lr_mult=FACTOR, wd_mult=FACTOR or both",
                               key, text),
                   fmt::format("{}=[\"embedding.* lr_mult=0.5 wd_mult=0\"]", key));
  }
}

Factors factors_of(const std::vector<std::string>& groups, const std::string& name, bool matrix) {
  Factors factors{.lr = 1, .decay = matrix ? 1.0 : 0.0};
  for (const std::string& text : groups) {
    const std::optional<ParamGroup> group = parse_param_group(text);
    if (!group) raise<Error>("internal error: \"{}\" is no group of parameters", text);
    if (matches_pattern(group->pattern, name))
      factors = {.lr = group->lr_mult, .decay = group->wd_mult.value_or(matrix ? 1.0 : 0.0)};
  }
  return factors;
}

} // namespace pentatron::optim
