#include "pentatron/base/white_space.h"

#include <algorithm>

namespace pentatron {

namespace {

/// Bytes of the white space that begins the text; 0 if none does, or if it is cut off. All of it is
/// in the first three bytes of UTF-8.
size_t space_at(std::string_view text) {
  if (text.empty()) return 0;
  const auto byte = [&](size_t i) {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u;
  };
  const auto continues = [&](size_t i) { return (byte(i) & 0xC0) == 0x80; };
  const unsigned first = byte(0);
  if (first < 0x80) return is_white_space(first) ? 1 : 0;
  if (!continues(1)) return 0;
  if (first < 0xE0)
    return is_white_space(((first & 0x1F) << 6) | (byte(1) & 0x3F)) && first >= 0xC2 ? 2 : 0;
  if (first >= 0xF0 || !continues(2)) return 0;
  return is_white_space(((first & 0x0F) << 12) | ((byte(1) & 0x3F) << 6) | (byte(2) & 0x3F)) ? 3
                                                                                             : 0;
}

} // namespace

bool is_white_space(char32_t c) {
  return c == 0x20 || (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x1F) || c == 0x85 ||
         c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 ||
         c == 0x202F || c == 0x205F || c == 0x3000;
}

std::string_view without_leading_space(std::string_view text) {
  while (const size_t size = space_at(text)) text.remove_prefix(std::min(size, text.size()));
  return text;
}

std::string_view without_trailing_space(std::string_view text) {
  for (;;) {
    size_t begin = text.size();
    for (size_t back = 1; back <= 3 && back <= text.size(); ++back)
      if (space_at(text.substr(text.size() - back)) == back) begin = text.size() - back;
    if (begin == text.size()) return text;
    text = text.substr(0, begin);
  }
}

std::string_view stripped(std::string_view text) {
  return without_leading_space(without_trailing_space(text));
}

SpaceRun find_space(std::string_view text) {
  for (size_t at = 0; at < text.size(); ++at) {
    const size_t size = space_at(text.substr(at));
    if (size == 0) continue;
    return {at, text.size() - at - without_leading_space(text.substr(at)).size()};
  }
  return {text.size(), 0};
}

int64_t count_spaces(std::string_view text) {
  int64_t count = 0;
  for (;;) {
    const SpaceRun run = find_space(text);
    if (run.size == 0) return count;
    ++count;
    text.remove_prefix(run.begin + run.size);
  }
}

} // namespace pentatron
