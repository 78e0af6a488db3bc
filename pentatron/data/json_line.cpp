#include "pentatron/data/json_line.h"

#include "pentatron/base/error.h"
#include "pentatron/base/json.h"
#include "pentatron/base/utf8.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

namespace pentatron::data {

namespace {

constexpr int kMaxDepth = 256;

/// Each method consumes one construct and returns false if it is not well formed.
class Scanner {
 public:
  explicit Scanner(std::string_view text) : p_(text.data()), end_(text.data() + text.size()) {}

  bool object_member(std::string_view key, std::string& text, JsonField& result);
  bool members(std::vector<std::string>& texts, std::vector<std::string>& others);
  bool at_end() {
    space();
    return p_ == end_;
  }
  /// Of what is not well formed: where that begins, or a little behind.
  std::string_view rest() const { return {p_, static_cast<size_t>(end_ - p_)}; }

 private:
  void space() {
    while (p_ < end_ && (*p_ == ' ' || *p_ == '\t' || *p_ == '\n' || *p_ == '\r')) ++p_;
  }
  bool take(char c) {
    if (p_ == end_ || *p_ != c) return false;
    ++p_;
    return true;
  }
  /// Whether the next thing, after spaces, is `c`; consumes it if so.
  bool next_is(char c) {
    space();
    return take(c);
  }
  bool string(std::string* out);
  bool escape(std::string* out);
  bool hex4(uint32_t& value);
  bool number();
  bool digits();
  bool literal(std::string_view word);
  bool value(int depth);
  bool container(char close, int depth);

  const char* p_;
  const char* end_;
};

/// Where the run of plain string bytes from p ends: at a quote, a backslash or a control character.
/// Eight bytes a step.
const char* plain_end(const char* p, const char* end) {
  constexpr uint64_t kOnes = 0x0101010101010101u;
  constexpr uint64_t kHighs = 0x8080808080808080u;
  while (end - p >= 8) {
    uint64_t w;
    std::memcpy(&w, p, 8);
    const uint64_t quote = w ^ (kOnes * '"');
    const uint64_t slash = w ^ (kOnes * '\\');
    const uint64_t hit =
        (((quote - kOnes) & ~quote) | ((slash - kOnes) & ~slash) | ((w - kOnes * 0x20) & ~w)) &
        kHighs;
    if (hit != 0) break;
    p += 8;
  }
  while (p < end && *p != '"' && *p != '\\' && static_cast<unsigned char>(*p) >= 0x20) ++p;
  return p;
}

bool Scanner::hex4(uint32_t& value) {
  if (end_ - p_ < 4) return false;
  value = 0;
  for (int i = 0; i < 4; ++i, ++p_) {
    const char c = *p_;
    const char lower = static_cast<char>(c | 0x20);
    value <<= 4;
    if (c >= '0' && c <= '9') {
      value |= static_cast<uint32_t>(c - '0');
    } else if (lower >= 'a' && lower <= 'f') {
      value |= static_cast<uint32_t>(lower - 'a' + 10);
    } else {
      return false;
    }
  }
  return true;
}

bool Scanner::escape(std::string* out) {
  if (p_ == end_) return false;
  const char c = *p_++;
  if (c != 'u') {
    static constexpr std::string_view kNames = "\"\\/bfnrt";
    static constexpr std::string_view kValues = "\"\\/\b\f\n\r\t";
    const size_t i = kNames.find(c);
    if (i == std::string_view::npos) return false;
    if (out) *out += kValues[i];
    return true;
  }
  uint32_t code = 0;
  if (!hex4(code)) return false;
  if (code >= 0xDC00 && code < 0xE000) return false;
  if (code >= 0xD800 && code < 0xDC00) {
    uint32_t low = 0;
    if (!take('\\') || !take('u') || !hex4(low) || low < 0xDC00 || low >= 0xE000) return false;
    code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
  }
  if (out) append_utf8(*out, code);
  return true;
}

/// The string whose opening quote is consumed already.
bool Scanner::string(std::string* out) {
  while (true) {
    const char* stop = plain_end(p_, end_);
    if (out) out->append(p_, stop);
    p_ = stop;
    if (p_ == end_) return false;
    const char c = *p_++;
    if (c == '"') return true;
    if (c != '\\' || !escape(out)) return false;
  }
}

bool Scanner::digits() {
  const char* start = p_;
  while (p_ < end_ && *p_ >= '0' && *p_ <= '9') ++p_;
  return p_ != start;
}

bool Scanner::number() {
  take('-');
  if (!take('0') && !digits()) return false;
  if (take('.') && !digits()) return false;
  if (take('e') || take('E')) {
    if (!take('+')) take('-');
    if (!digits()) return false;
  }
  return true;
}

bool Scanner::literal(std::string_view word) {
  if (std::string_view(p_, static_cast<size_t>(end_ - p_)).substr(0, word.size()) != word)
    return false;
  p_ += word.size();
  return true;
}

bool Scanner::value(int depth) {
  space();
  if (p_ == end_ || depth > kMaxDepth) return false;
  switch (*p_) {
  case '"':
    ++p_;
    return string(nullptr);
  case '{':
    ++p_;
    return container('}', depth);
  case '[':
    ++p_;
    return container(']', depth);
  case 't':
    return literal("true");
  case 'f':
    return literal("false");
  case 'n':
    return literal("null");
  default:
    return number();
  }
}

bool Scanner::container(char close, int depth) {
  if (next_is(close)) return true;
  do {
    if (close == '}' && !(next_is('"') && string(nullptr) && next_is(':'))) return false;
    if (!value(depth + 1)) return false;
  } while (next_is(','));
  return next_is(close);
}

bool Scanner::object_member(std::string_view key, std::string& text, JsonField& result) {
  result = JsonField::kMissing;
  if (!next_is('{')) return false;
  if (next_is('}')) return true;
  std::string name;
  do {
    name.clear();
    if (!(next_is('"') && string(&name) && next_is(':'))) return false;
    if (name != key) {
      if (!value(1)) return false;
      continue;
    }
    text.clear();
    if (next_is('"')) {
      if (!string(&text)) return false;
      result = JsonField::kFound;
    } else {
      if (!value(1)) return false;
      result = JsonField::kNotString;
    }
  } while (next_is(','));
  return next_is('}');
}

bool Scanner::members(std::vector<std::string>& texts, std::vector<std::string>& others) {
  if (!next_is('{')) return false;
  if (next_is('}')) return true;
  std::string name;
  do {
    name.clear();
    if (!(next_is('"') && string(&name) && next_is(':'))) return false;
    space();
    (p_ != end_ && *p_ == '"' ? texts : others).push_back(name);
    if (!value(1)) return false;
  } while (next_is(','));
  return next_is('}');
}

} // namespace

ObjectKeys object_keys(std::string_view line) {
  ObjectKeys keys;
  std::vector<std::string> others;
  Scanner scanner(line);
  if (!scanner.members(keys.all, others) || !scanner.at_end()) return {};
  keys.with_text = keys.all.size();
  keys.all.insert(keys.all.end(), others.begin(), others.end());
  return keys;
}

std::string missing_key_text(const ObjectKeys& keys, std::string_view key) {
  return fmt::format("has no key \"{}\"; {}", key, keys_text(keys));
}

std::string keys_text(const ObjectKeys& keys) {
  constexpr size_t kShown = 8, kLongest = 60;
  if (keys.all.empty()) return "it has no keys";
  std::string text = keys.all.size() == 1 ? "its only key is" : "its keys are";
  for (size_t i = 0; i < std::min(keys.all.size(), kShown); ++i) {
    const std::string& name = keys.all[i];
    const bool fits = name.size() <= kLongest;
    text += fmt::format("{} \"{}\"", i == 0 ? "" : ",", fits ? name : name.substr(0, 20) + "...");
  }
  if (keys.all.size() > kShown) text += ", ...";
  return text;
}

JsonField extract_string(std::string_view line, std::string_view key, std::string& text) {
  text.clear();
  Scanner scanner(line);
  JsonField result = JsonField::kMissing;
  if (!scanner.object_member(key, text, result) || !scanner.at_end()) return JsonField::kMalformed;
  return result;
}

namespace {

/// Numbers that Python writes and JSON does not have.
std::string malformed_text(std::string_view record) {
  Scanner scanner(record);
  std::vector<std::string> ignored;
  if (!scanner.members(ignored, ignored))
    for (const std::string_view word : {"NaN", "Infinity"})
      if (scanner.rest().starts_with(word))
        return fmt::format("contains {}, which is not JSON", word);
  return "is not a JSON object";
}

/// `what` the value of a key has not, and the key of the object that has text instead.
NoText other_value(std::string_view what, std::string_view record, std::string_view key) {
  const ObjectKeys keys = object_keys(record);
  return {BadInput::kMissingKey,
          fmt::format("{} under the key \"{}\"{}", what, key,
                      keys.with_text > 0 ? "; " + keys_text(keys) : ""),
          keys.with_text > 0 ? keys.all[0] : ""};
}

std::optional<NoText> reason_of(JsonField field, std::string_view record, std::string_view key) {
  switch (field) {
  case JsonField::kMalformed:
    return NoText{BadInput::kBadJson, malformed_text(record)};
  case JsonField::kMissing: {
    const ObjectKeys keys = object_keys(record);
    return NoText{BadInput::kMissingKey, missing_key_text(keys, key),
                  keys.with_text > 0 ? keys.all[0] : ""};
  }
  case JsonField::kNotString:
    return other_value("has no string", record, key);
  case JsonField::kFound:
    break;
  }
  return std::nullopt;
}

} // namespace

std::optional<NoText> read_text(std::string_view record, std::string_view key, std::string& text) {
  return reason_of(extract_string(record, key, text), record, key);
}

std::optional<NoText> read_text_or_ids(std::string_view record, std::string_view key,
                                       int64_t vocab_size, TextOrIds& document) {
  document.ids.clear();
  const JsonField field = extract_string(record, key, document.text);
  document.is_ids = field == JsonField::kNotString;
  if (!document.is_ids) return reason_of(field, record, key);
  Json json;
  try {
    json = parse_json(record, "the object");
  } catch (const DataError& error) {
    return NoText{BadInput::kBadJson, fmt::format("cannot be read: {}", error.what())};
  }
  const Json& list = json[std::string(key)];
  if (!list.is_array()) return other_value("has no string", record, key);
  for (const Json& id : list) {
    if (!id.is_number_integer())
      return other_value("has neither a string nor a list of token ids", record, key);
    const auto value = id.get<int64_t>();
    if (value < 0 || value >= vocab_size)
      return NoText{BadInput::kMissingKey,
                    fmt::format("has the token id {}, outside the vocabulary of {}, under the key "
                                "\"{}\"",
                                dump_json(id), vocab_size, key)};
    document.ids.push_back(static_cast<int32_t>(value));
  }
  return std::nullopt;
}

} // namespace pentatron::data
