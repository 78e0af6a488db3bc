#include "pentatron/checkpoint/gguf/key_reader.h"

#include <algorithm>
#include <charconv>
#include <limits>

#include "pentatron/base/error.h"
#include "pentatron/base/text.h"

namespace pentatron::checkpoint {

double as_written(double value) {
  const auto narrow = static_cast<float>(value);
  if (static_cast<double>(narrow) != value) return value;
  char text[32];
  const auto end = std::to_chars(text, text + sizeof(text), narrow).ptr;
  double out = value;
  std::from_chars(text, end, out);
  return out;
}

std::optional<double> GgufKeyReader::number(std::string_view key) const {
  const auto value = keys_.find_number(full(key));
  return value ? std::optional(as_written(*value)) : std::nullopt;
}

double GgufKeyReader::needed_number(std::string_view key) const {
  const auto value = number(key);
  if (!value) raise<DataError>("{} has no '{}' in its metadata", keys_.origin(), full(key));
  return *value;
}

void GgufKeyReader::refuse_others(const std::vector<std::string_view>& known) {
  for (const auto& [key, value] : keys_.all()) {
    if (!key.starts_with(architecture_ + ".")) continue;
    const std::string_view name = std::string_view(key).substr(architecture_.size() + 1);
    if (std::ranges::find(known, name) == known.end())
      problem(fmt::format("metadata key '{}' is not supported", excerpt(key)));
  }
}

void GgufKeyReader::refuse_unless(std::string_view key, double neutral) {
  if (!has(key)) return;
  const GgufValue& value = *keys_.find(full(key));
  const bool* flag = std::get_if<bool>(&value);
  const double given = flag ? (*flag ? 1.0 : 0.0) : *keys_.find_number(full(key));
  if (given != neutral) problem(fmt::format("{}={} is not supported", full(key), given));
}

int64_t GgufKeyReader::checked(const std::string& key, int64_t value) {
  if (value >= 1 && value <= std::numeric_limits<int32_t>::max()) return value;
  problem(fmt::format("{}={} is not valid", key, value));
  return 1;
}

} // namespace pentatron::checkpoint
