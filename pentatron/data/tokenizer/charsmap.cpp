#include "pentatron/data/tokenizer/charsmap.h"

#include <array>
#include <cstring>

#include "pentatron/base/error.h"
#include "pentatron/data/utf8.h"

namespace pentatron::data::tokenizer {

namespace {

constexpr uint32_t offset_of(uint32_t unit) {
  return (unit >> 10) << ((unit & (1u << 9)) >> 6);
}
constexpr bool has_leaf(uint32_t unit) {
  return (unit >> 8 & 1) != 0;
}
constexpr uint32_t label_of(uint32_t unit) {
  return unit & ((1u << 31) | 0xFF);
}
constexpr uint32_t value_of(uint32_t unit) {
  return unit & 0x7FFFFFFF;
}

} // namespace

Charsmap::Charsmap(std::string_view bytes) {
  if (bytes.empty()) return;
  uint32_t trie_bytes = 0;
  if (bytes.size() < sizeof trie_bytes) throw DataError("the precompiled charsmap is truncated");
  std::memcpy(&trie_bytes, bytes.data(), sizeof trie_bytes);
  bytes.remove_prefix(sizeof trie_bytes);
  if (trie_bytes >= bytes.size() || trie_bytes % 4 != 0)
    raise<DataError>(
        "the precompiled charsmap states that its trie has {} bytes, but only {} are left",
        trie_bytes, bytes.size());
  units_.resize(trie_bytes / 4);
  if (trie_bytes != 0) std::memcpy(units_.data(), bytes.data(), trie_bytes);
  replacements_ = bytes.substr(trie_bytes);
  if (find_invalid_utf8(replacements_) != std::string_view::npos)
    throw DataError("the replacements of the precompiled charsmap are not UTF-8");
  if (replacements_.empty() || replacements_.back() != '\0')
    throw DataError("the last replacement of the precompiled charsmap has no end");
}

Charsmap::Rule Charsmap::search(std::string_view text, bool longest) const {
  Rule rule;
  if (units_.empty()) return rule;
  size_t node = offset_of(units_[0]);
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte == 0) break;
    node ^= byte;
    if (node >= units_.size() || label_of(units_[node]) != byte) break;
    const bool leaf = has_leaf(units_[node]);
    node ^= offset_of(units_[node]);
    if (node >= units_.size()) break;
    if (!leaf) continue;
    const size_t at = value_of(units_[node]);
    if (at >= replacements_.size()) break;
    if (at > 0 && (static_cast<unsigned char>(replacements_[at]) & 0xC0) == 0x80) break;
    rule.length = i + 1;
    rule.replacement = std::string_view(replacements_.data() + at);
    if (!longest) break;
  }
  return rule;
}

std::string decode_base64(std::string_view text) {
  static const auto values = [] {
    std::array<int8_t, 256> t = {};
    t.fill(-1);
    constexpr std::string_view kDigits =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < kDigits.size(); ++i)
      t[static_cast<unsigned char>(kDigits[i])] = static_cast<int8_t>(i);
    return t;
  }();
  while (!text.empty() && text.back() == '=') text.remove_suffix(1);
  if (text.size() % 4 == 1) throw DataError("the base64 text is truncated");
  std::string out;
  out.reserve(text.size() * 3 / 4);
  uint32_t bits = 0;
  int have = 0;
  for (const char c : text) {
    const int8_t value = values[static_cast<unsigned char>(c)];
    if (value < 0) raise<DataError>("byte 0x{:02X} is not base64", static_cast<unsigned char>(c));
    bits = bits << 6 | static_cast<uint32_t>(value);
    have += 6;
    if (have >= 8) {
      have -= 8;
      out += static_cast<char>(bits >> have & 0xFF);
    }
  }
  return out;
}

} // namespace pentatron::data::tokenizer
