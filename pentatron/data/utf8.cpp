#include "pentatron/data/utf8.h"

#include <algorithm>
#include <cstring>

namespace pentatron::data {

namespace {

using Byte = unsigned char;

bool is_continuation(Byte b) {
  return (b & 0xC0) == 0x80;
}

/// The length of the valid character at p, or 0. Table 3-7 of the Unicode standard.
size_t character_length(const Byte* p, size_t left) {
  const Byte b = p[0];
  if (b < 0x80) return 1;
  if (b < 0xC2) return 0;
  if (b < 0xE0) return left >= 2 && is_continuation(p[1]) ? 2 : 0;
  if (b < 0xF0) {
    if (left < 3 || !is_continuation(p[1]) || !is_continuation(p[2])) return 0;
    if (b == 0xE0 && p[1] < 0xA0) return 0;  // overlong
    if (b == 0xED && p[1] >= 0xA0) return 0; // surrogate
    return 3;
  }
  if (b > 0xF4 || left < 4) return 0;
  if (!is_continuation(p[1]) || !is_continuation(p[2]) || !is_continuation(p[3])) return 0;
  if (b == 0xF0 && p[1] < 0x90) return 0;  // overlong
  if (b == 0xF4 && p[1] >= 0x90) return 0; // above U+10FFFF
  return 4;
}

/// Advances over ASCII, 32 bytes at a time.
size_t skip_ascii(const Byte* p, size_t i, size_t n) {
  constexpr uint64_t kHighBits = 0x8080808080808080u;
  while (i + 32 <= n) {
    uint64_t words[4];
    std::memcpy(words, p + i, 32);
    if (((words[0] | words[1] | words[2] | words[3]) & kHighBits) != 0) break;
    i += 32;
  }
  while (i < n && p[i] < 0x80) ++i;
  return i;
}

} // namespace

size_t find_invalid_utf8(std::string_view text) {
  const auto* p = reinterpret_cast<const Byte*>(text.data());
  const size_t n = text.size();
  size_t i = 0;
  while (i < n) {
    if (p[i] < 0x80) {
      i = skip_ascii(p, i, n);
      continue;
    }
    const size_t length = character_length(p + i, n - i);
    if (length == 0) return i;
    i += length;
  }
  return std::string_view::npos;
}

size_t incomplete_utf8_tail(std::string_view text) {
  const size_t n = text.size();
  for (size_t back = 1; back <= std::min<size_t>(3, n); ++back) {
    const Byte b = static_cast<Byte>(text[n - back]);
    if (is_continuation(b)) continue;
    const size_t need = b >= 0xF0 ? 4 : b >= 0xE0 ? 3 : b >= 0xC2 ? 2 : 1;
    return need > back ? back : 0;
  }
  return 0;
}

} // namespace pentatron::data
