#include "pentatron/evaluation/tasks/read_keys.h"

#include "pentatron/base/nearest.h"

namespace pentatron::evaluation {

KeyReader::KeyReader(const Document& map, std::string where) : map_(map), where_(std::move(where)) {
  if (!map.is_object()) fail("expected a mapping with keys", "key: value");
}

void KeyReader::fail(std::string_view what, std::string_view remedy) const {
  raise<ConfigError>("{}: {}\n  try: {}", where_, what, remedy);
}

Document KeyReader::any(std::string_view key) {
  known_.emplace(key);
  const auto found = map_.find(key);
  return found == map_.end() ? Document() : *found;
}

bool KeyReader::has(std::string_view key) {
  return !any(key).is_null();
}

std::optional<std::string> KeyReader::text(std::string_view key) {
  const Document value = any(key);
  if (value.is_null()) return std::nullopt;
  if (!value.is_string())
    fail(fmt::format("{}: {} is not a string", key, value.dump()), fmt::format("{}: \"...\"", key));
  return value.get<std::string>();
}

std::optional<int64_t> KeyReader::integer(std::string_view key) {
  const Document value = any(key);
  if (value.is_null()) return std::nullopt;
  if (!value.is_number_integer())
    fail(fmt::format("{}: {} is not an integer", key, value.dump()), fmt::format("{}: 0", key));
  return value.get<int64_t>();
}

bool KeyReader::boolean(std::string_view key, bool otherwise) {
  const Document value = any(key);
  if (value.is_null()) return otherwise;
  if (!value.is_boolean())
    fail(fmt::format("{}: {} is not true or false", key, value.dump()),
         fmt::format("{}: true", key));
  return value.get<bool>();
}

std::vector<std::string> KeyReader::texts(std::string_view key) {
  const Document value = any(key);
  if (value.is_null()) return {};
  if (value.is_string()) return {value.get<std::string>()};
  std::vector<std::string> all;
  for (const Document& item : value) {
    if (!value.is_array() || !item.is_string())
      fail(fmt::format("{}: {} is not a string or a list of strings", key, value.dump()),
           fmt::format("{}: [\"...\"]", key));
    all.push_back(item.get<std::string>());
  }
  return all;
}

Field KeyReader::field(std::string_view key) {
  Document value = any(key);
  if (value.is_null()) return {};
  const bool good = value.is_string() || value.is_number_integer() || value.is_array() ||
                    (value.is_object() && key == "doc_to_choice");
  if (!good)
    fail(fmt::format("{}: {} is not a template, a column or a list", key, value.dump()),
         fmt::format("{}: \"{{{{text}}}}\"", key));
  return Field(fmt::format("{}: {}", where_, key), std::move(value));
}

void KeyReader::ignore(std::initializer_list<std::string_view> keys) {
  for (const std::string_view key : keys) known_.emplace(key);
}

void KeyReader::refuse(std::string_view key, std::string_view reason, std::string_view remedy) {
  const Document value = any(key);
  const bool nothing = value.is_null() || value == false || value == "";
  if (!nothing) fail(fmt::format("{} is not supported: {}", key, reason), remedy);
}

void KeyReader::finish() const {
  std::vector<std::string> known(known_.begin(), known_.end());
  for (const auto& [key, value] : map_.items()) {
    if (known_.contains(key)) continue;
    const std::string near = nearest(key, known);
    fail(fmt::format("the key {} is not known", key),
         near.empty() ? fmt::format("remove {}", key) : near);
  }
}

} // namespace pentatron::evaluation
