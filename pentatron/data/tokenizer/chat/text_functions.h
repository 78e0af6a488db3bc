/// What chat templates do with strings: Python's methods, and how functions get their arguments.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "pentatron/data/tokenizer/chat/value.h"

namespace pentatron::data::tokenizer::chat {

struct Arguments {
  std::vector<Value> values; ///< by position
  std::vector<std::pair<std::string, Value>> named;

  /// The argument at `position` or called `name`; null if it is not given.
  const Value* find(size_t position, std::string_view name) const;
};

/// Throws DataError, which names the function, if the argument is not given.
const Value& needed(const Arguments& arguments, size_t position, std::string_view name,
                    std::string_view what);
/// Throws DataError for other types.
const std::string& string_of(const Value& v, std::string_view what);
int64_t integer_of(const Value* v, int64_t otherwise, std::string_view what);

/// Without the `characters` (null: white space) at its ends.
std::string strip(std::string_view text, const Value* characters, bool left, bool right);
/// What stands before a letter that becomes upper case; all others become lower case.
enum class WordStart : uint8_t {
  kText,     ///< str.capitalize: the start of the text
  kNoLetter, ///< str.title: anything but a letter, too
  kBlank     ///< the filter title: white space, '-' and opening brackets, too
};
std::string title(std::string_view text, WordStart words);
std::string replace(const std::string& text, const std::string& from, const std::string& to,
                    int64_t count);
/// At most `most` times; < 0: everywhere. No separator: at white space.
List split(const std::string& text, const Value* separator, int64_t most);
std::string join(const List& items, const std::string& separator);
std::string indent(const std::string& text, const Arguments& arguments);
/// `&`, `<`, `>` and quotation marks as in HTML.
std::string escaped(const std::string& text);
/// The text of a value in Markup: escaped unless it is Markup.
std::string markup_text(const Value& v);
/// Escapes arguments that become part of Markup; numbers stay numbers.
void escape_arguments(Arguments& arguments);
/// Words as \w+ finds them.
int64_t count_words(std::string_view text);
/// The filter truncate: cut to so many characters, with an end that says so.
Value truncated(const Value& v, const Arguments& arguments);
/// The filter urlencode: of a text, or of the pairs of a dictionary or list.
std::string url_encoded(const Value& v);
/// The filter wordwrap: lines of at most so many characters.
std::string word_wrapped(const std::string& text, const Arguments& arguments);
/// The filter striptags: without tags and comments of HTML, words apart by one space, &lt; as <.
/// Throws DataError for a character with a rare name.
std::string without_markup(const std::string& text);

bool has_string_method(std::string_view name);
Value call_string_method(const std::string& text, std::string_view name,
                         const Arguments& arguments);

} // namespace pentatron::data::tokenizer::chat
