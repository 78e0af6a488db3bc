// The scanner of JSONL agrees with a general JSON parser on every line of UTF-8.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "pentatron/base/json.h"
#include "pentatron/data/json_line.h"
#include "pentatron/data/utf8.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace pentatron;
  const std::string_view line(reinterpret_cast<const char*>(data), size);
  if (data::find_invalid_utf8(line) != std::string_view::npos) return 0;
  std::string text;
  const data::JsonField result = data::extract_string(line, "text", text);
  if (data::find_invalid_utf8(text) != std::string_view::npos) __builtin_trap();

  // To the general parser a zero byte is the end of the line; to the scanner it is malformed.
  if (line.find('\0') != std::string_view::npos) {
    if (result != data::JsonField::kMalformed) __builtin_trap();
    return 0;
  }
  const Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) {
    // The parser also refuses numbers out of range, which the scanner skips without reading them.
    const bool number = line.find_first_of("0123456789") != std::string_view::npos;
    if (result != data::JsonField::kMalformed && !number) __builtin_trap();
    return 0;
  }
  // The scanner refuses what is nested deeper than its limit, and a byte order mark.
  if (result == data::JsonField::kMalformed) {
    const bool nested = line.size() > 256 || line.substr(0, 3) == "\xef\xbb\xbf";
    if (json.is_object() && !nested) __builtin_trap();
    return 0;
  }
  if (!json.is_object()) __builtin_trap();
  const auto member = json.find("text");
  const data::JsonField expected = member == json.end()  ? data::JsonField::kMissing
                                   : member->is_string() ? data::JsonField::kFound
                                                         : data::JsonField::kNotString;
  if (result != expected) __builtin_trap();
  if (result == data::JsonField::kFound && text != member->get_ref<const std::string&>())
    __builtin_trap();
  return 0;
}
