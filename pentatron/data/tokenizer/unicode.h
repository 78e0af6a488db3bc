/// Code points, their properties and normalization forms.
///
/// Versions of Unicode decide what happens to rare characters, and to give the same ids they must
/// be those of the libraries that made the tokenizers: patterns see Unicode 16, normalization forms
/// are those of Unicode 9, and where a function says so, properties are those of Unicode 8.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "pentatron/base/utf8.h"

namespace pentatron::data::tokenizer {

/// General categories in the order of tools/make_unicode_tables.py.
enum class Category : uint8_t {
  // clang-format off
  kCn, kCc, kCf, kCo, kCs, kLl, kLm, kLo, kLt, kLu, kMc, kMe, kMn, kNd, kNl, kNo,
  kPc, kPd, kPe, kPf, kPi, kPo, kPs, kSc, kSk, kSm, kSo, kZl, kZp, kZs
  // clang-format on
};

/// What the patterns of pre-tokenizers ask about a code point; bits of CharTables::flags.
enum CharFlag : uint8_t {
  kLetter = 1,       ///< \p{L}
  kNumber = 2,       ///< \p{N}
  kSpace = 4,        ///< \s: White_Space
  kMark = 8,         ///< \p{M}
  kUpperLike = 16,   ///< \p{Lu} \p{Lt} \p{Lm} \p{Lo} \p{M}
  kLowerLike = 32,   ///< \p{Ll} \p{Lm} \p{Lo} \p{M}
  kPunctuation = 64, ///< \p{P}
  kSymbol = 128,     ///< \p{S}
};

/// One byte a code point, made on first use.
struct CharTables {
  static constexpr size_t kSize = 0x110000;
  std::vector<uint8_t> flags;
  std::vector<Category> category;
  std::vector<uint8_t> age; ///< 0: assigned in Unicode 8, 1: in 9, 2: in 14, 3: later or never
};
const CharTables& char_tables();

inline bool is_space(char32_t c) {
  return (char_tables().flags[c] & kSpace) != 0;
}
/// \w: letters, marks, digits, connectors, and what else is alphabetic.
bool is_word(char32_t c);

/// The category in Unicode 8.
Category old_category(char32_t c);
/// Whether \p{M} held in Unicode 9.
bool is_old_mark(char32_t c);

/// The code point that begins at `p` and its length. The text must be valid UTF-8.
struct CodePoint {
  char32_t value;
  uint32_t size;
};
inline CodePoint read_code_point(const char* p) {
  const auto byte = [p](int i) { return static_cast<char32_t>(static_cast<unsigned char>(p[i])); };
  const char32_t b = byte(0);
  if (b < 0x80) return {b, 1};
  if (b < 0xE0) return {(b & 0x1F) << 6 | (byte(1) & 0x3F), 2};
  if (b < 0xF0) return {(b & 0xF) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F), 3};
  return {(b & 7) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F), 4};
}
/// The length of the character whose first byte this is.
inline size_t utf8_length(char first) {
  const auto b = static_cast<unsigned char>(first);
  return b < 0x80 ? 1 : b < 0xE0 ? 2 : b < 0xF0 ? 3 : 4;
}
/// Calls `f(code point)` for each of valid UTF-8.
template <class F> void for_each_code_point(std::string_view text, F&& f) {
  for (size_t i = 0; i < text.size();) {
    const CodePoint c = read_code_point(text.data() + i);
    f(c.value);
    i += c.size;
  }
}
/// The code point that ends where `text` does; `text` is not empty.
CodePoint last_code_point(std::string_view text);

enum class NormalForm : uint8_t { kNfc, kNfd, kNfkc, kNfkd };
/// Normalization of valid UTF-8 (Unicode Standard Annex 15), in linear time.
std::string normalize(std::string_view text, NormalForm form);

/// Lower case of every code point alone, without regard to its neighbours.
std::string to_lower(std::string_view text);

/// As str.lower() of Python: a capital sigma at the end of a word has the form for that place.
std::string to_lower_words(std::string_view text);

/// Upper case of every code point alone, which may be several letters. Greek letters with a
/// subscript iota stay as they are.
std::string to_upper(std::string_view text);

/// As to_upper, but of a first letter: of several letters only the first is a capital.
std::string to_title(std::string_view text);

/// `bytes` with U+FFFD for everything that is not UTF-8, one for each maximal part of a character.
std::string replace_invalid_utf8(std::string_view bytes);

} // namespace pentatron::data::tokenizer
