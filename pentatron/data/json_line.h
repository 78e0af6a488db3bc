/// Extracts one string from a JSON object, faster than a general parser and without building a
/// tree.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "pentatron/data/input_report.h"

namespace pentatron::data {

enum class JsonField : uint8_t { kFound, kMissing, kNotString, kMalformed };

/// Finds the top-level member `key` of the JSON object `line` and puts its string value, unescaped,
/// into `text` (cleared first). The whole line is checked to be one JSON object (RFC 8259); a key
/// that occurs twice counts as its last value. `line` must be valid UTF-8; so is `text`: an escape
/// that is half of a surrogate pair makes the line kMalformed.
JsonField extract_string(std::string_view line, std::string_view key, std::string& text);

/// The top-level keys of a JSON object, those that hold a string first; none if `line` is not one.
struct ObjectKeys {
  std::vector<std::string> all;
  size_t with_text = 0; ///< how many of them, from the first, hold a string
};
ObjectKeys object_keys(std::string_view line);

/// "has no key "text"; its keys are "content", "id"", for messages.
std::string missing_key_text(const ObjectKeys& keys, std::string_view key);
/// "its keys are "a", "b"".
std::string keys_text(const ObjectKeys& keys);

/// Why a record has no text; the members are those of SkippedInput.
struct NoText {
  BadInput kind;
  std::string reason;
  std::string key = {};
};
/// Stores the string of the member `key` in `text`, like extract_string, or returns why it is
/// missing.
std::optional<NoText> read_text(std::string_view record, std::string_view key, std::string& text);

/// A document: a string, or the list of its token ids.
struct TextOrIds {
  std::string text;
  std::vector<int32_t> ids;
  bool is_ids = false;
};
/// Like read_text(), for a string or a list of integers in [0, vocab_size).
std::optional<NoText> read_text_or_ids(std::string_view record, std::string_view key,
                                       int64_t vocab_size, TextOrIds& document);

} // namespace pentatron::data
