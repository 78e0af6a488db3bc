#include "pentatron/evaluation/tasks/read_keys.h"

#include <algorithm>

#include "pentatron/base/nearest.h"
#include "pentatron/base/text.h"
#include "pentatron/data/regex.h"

namespace pentatron::evaluation {

namespace {

/// `value` as a string of a task file, for a suggestion.
std::string as_string(const Document& value) {
  if (value.is_array() && value.size() == 1 && value[0].is_string()) return value[0].dump();
  const bool scalar = value.is_number() || value.is_boolean();
  return scalar ? fmt::format("\"{}\"", value.dump()) : "\"...\"";
}

/// "2" as a number, for a suggestion.
std::string digits_of(const Document& value) {
  const std::string text = value.is_string() ? value.get<std::string>() : "";
  const bool digits = !text.empty() && text.size() < 10 &&
                      std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
  return digits ? text : "1";
}

bool is_field(std::string_view key, const Document& value) {
  if (value.is_string()) return true;
  if (key == "doc_to_choice") return value.is_array() || value.is_object();
  if (key == "doc_to_target" && value.is_array()) return true;
  return value.is_number_integer() && (key == "doc_to_text" || key == "doc_to_target");
}

} // namespace

KeyReader::KeyReader(const Document& map, std::string where, std::string_view remedy)
    : map_(map), where_(std::move(where)) {
  if (!map.is_object())
    fail(fmt::format("{} is not a mapping of keys to values", excerpt(map.dump())), remedy);
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
    fail(fmt::format("{}: {} is not a string", key, excerpt(value.dump())),
         fmt::format("{}: {}", key, as_string(value)));
  return value.get<std::string>();
}

std::optional<int64_t> KeyReader::integer(std::string_view key) {
  const Document value = any(key);
  if (value.is_null()) return std::nullopt;
  if (!value.is_number_integer())
    fail(fmt::format("{}: {} is not an integer", key, excerpt(value.dump())),
         fmt::format("{}: {}", key, digits_of(value)));
  return value.get<int64_t>();
}

bool KeyReader::boolean(std::string_view key, bool otherwise) {
  const Document value = any(key);
  if (value.is_null()) return otherwise;
  if (!value.is_boolean())
    fail(fmt::format("{}: {} is not true or false", key, excerpt(value.dump())),
         fmt::format("{}: true", key));
  return value.get<bool>();
}

std::vector<std::string> KeyReader::texts(std::string_view key) {
  const Document value = any(key);
  if (value.is_null()) return {};
  if (value.is_string()) return {value.get<std::string>()};
  std::vector<std::string> all;
  const auto refuse_it = [&] {
    fail(fmt::format("{}: {} is not a string or a list of strings", key, excerpt(value.dump())),
         fmt::format("{}: [{}]", key, as_string(value)));
  };
  if (!value.is_array()) refuse_it();
  for (const Document& item : value) {
    if (!item.is_string()) refuse_it();
    all.push_back(item.get<std::string>());
  }
  return all;
}

std::vector<Document> KeyReader::maps(std::string_view key, std::string_view remedy) {
  const Document value = any(key);
  if (value.is_null()) return {};
  const bool good = value.is_array() && std::ranges::all_of(value, [](const Document& item) {
                      return item.is_object();
                    });
  if (!good)
    fail(fmt::format("{}: {} is not a list of mappings", key, excerpt(value.dump())), remedy);
  return {value.begin(), value.end()};
}

Field KeyReader::field(std::string_view key) {
  Document value = any(key);
  if (value.is_null()) return {};
  const bool choices = key == "doc_to_choice";
  if (!is_field(key, value))
    fail(fmt::format("{}: {} is not {}", key, excerpt(value.dump()),
                     choices ? "a list of strings, a template or a column"
                             : "a template or a column"),
         choices ? R"(doc_to_choice: ["no", "yes"])" : fmt::format("{}: \"{{{{text}}}}\"", key));
  if (choices && !value.is_string()) {
    std::string strings;
    bool good = !value.empty();
    for (const Document& item : value) {
      good = good && item.is_string();
      strings += (strings.empty() ? "" : ", ") + (item.is_string() ? item.dump() : as_string(item));
    }
    if (!good)
      fail(fmt::format("doc_to_choice: {} is not a list of strings", excerpt(value.dump())),
           fmt::format("doc_to_choice: [{}]", strings.empty() ? R"("no", "yes")" : strings));
  }
  return Field(fmt::format("{}: {}", where_, key), std::move(value));
}

void KeyReader::check_regex(std::string_view key, const std::string& pattern) const {
  try {
    data::Regex regex(pattern);
  } catch (const DataError& error) {
    fail(fmt::format("{}: {}", key, error.what()),
         fmt::format("an expression of Python's re, such as {}: \"([0-9]+)\"", key));
  }
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
