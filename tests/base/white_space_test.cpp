#include "pentatron/base/white_space.h"

#include <string>

#include <gtest/gtest.h>

namespace pentatron {
namespace {

std::string utf8(char32_t c) {
  if (c < 0x80) return {static_cast<char>(c)};
  if (c < 0x800) return {static_cast<char>(0xC0 | (c >> 6)), static_cast<char>(0x80 | (c & 0x3F))};
  if (c < 0x10000)
    return {static_cast<char>(0xE0 | (c >> 12)), static_cast<char>(0x80 | ((c >> 6) & 0x3F)),
            static_cast<char>(0x80 | (c & 0x3F))};
  return {static_cast<char>(0xF0 | (c >> 18)), static_cast<char>(0x80 | ((c >> 12) & 0x3F)),
          static_cast<char>(0x80 | ((c >> 6) & 0x3F)), static_cast<char>(0x80 | (c & 0x3F))};
}

// [c for c in range(0x110000) if chr(c).isspace()] of Python 3.11.
const std::u32string kPython = U"\t\n\v\f\r\x1c\x1d\x1e\x1f \x85\xa0\u1680\u2000\u2001\u2002\u2003"
                               U"\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029\u202f"
                               U"\u205f\u3000";

TEST(WhiteSpace, IsWhatPythonTakesForIt) {
  for (char32_t c = 0; c < 0x110000; ++c) {
    const bool expected = kPython.find(c) != std::u32string::npos;
    ASSERT_EQ(is_white_space(c), expected) << static_cast<uint32_t>(c);
    if (c >= 0xD800 && c < 0xE000) continue;
    const std::string text = utf8(c) + "a" + utf8(c);
    ASSERT_EQ(stripped(text), expected ? "a" : text) << static_cast<uint32_t>(c);
  }
}

TEST(WhiteSpace, RunsAreFoundAndCounted) {
  const std::string text = utf8(0x3000) + " ab" + utf8(0xA0) + "\t" + utf8(0x2003) + "c";
  EXPECT_EQ(count_spaces(text), 2);
  EXPECT_EQ(find_space(text).begin, 0u);
  EXPECT_EQ(find_space(text).size, 4u);
  const SpaceRun second = find_space(std::string_view(text).substr(4));
  EXPECT_EQ(second.begin, 2u);
  EXPECT_EQ(second.size, 6u);
  EXPECT_EQ(find_space("abc").size, 0u);
  EXPECT_EQ(without_trailing_space("a \n"), "a");
  EXPECT_EQ(without_leading_space(" \na "), "a ");
  for (const char* text : {"", " ", "\xE3", "\xE3\x80", "\x80\x80", "\xC2"}) { // also damaged
    EXPECT_LE(stripped(text).size(), std::string(text).size());
    EXPECT_EQ(count_spaces(text), *text == ' ' ? 1 : 0);
  }
}

} // namespace
} // namespace pentatron
