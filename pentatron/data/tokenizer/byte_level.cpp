#include "pentatron/data/tokenizer/byte_level.h"

#include "pentatron/data/tokenizer/unicode.h"

namespace pentatron::data::tokenizer {

const std::array<char32_t, 256>& byte_characters() {
  static const auto table = [] {
    std::array<char32_t, 256> t = {};
    char32_t next = 256; // for bytes that do not print
    for (char32_t b = 0; b < 256; ++b) {
      const bool prints = (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
      t[b] = prints ? b : next++;
    }
    return t;
  }();
  return table;
}

int character_byte(char32_t c) {
  static const auto table = [] {
    std::array<int16_t, 512> t = {};
    t.fill(-1);
    for (int b = 0; b < 256; ++b)
      t[byte_characters()[static_cast<size_t>(b)]] = static_cast<int16_t>(b);
    return t;
  }();
  return c < table.size() ? table[c] : -1;
}

std::string bytes_to_characters(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size() * 2);
  for (const char c : bytes) append_utf8(out, byte_characters()[static_cast<unsigned char>(c)]);
  return out;
}

std::optional<std::string> characters_to_bytes(std::string_view token) {
  std::string out;
  out.reserve(token.size());
  for (size_t i = 0; i < token.size();) {
    const CodePoint c = read_code_point(token.data() + i);
    const int byte = character_byte(c.value);
    if (byte < 0) return std::nullopt;
    out += static_cast<char>(byte);
    i += c.size;
  }
  return out;
}

} // namespace pentatron::data::tokenizer
