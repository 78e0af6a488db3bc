/// Small text functions that several modules need.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace pentatron {

/// Whether `text` is well-formed UTF-8: no overlong forms, surrogates or values above U+10FFFF.
bool is_utf8(std::string_view text);

/// `text` without white space at both ends.
std::string_view trim(std::string_view text);

/// The parts between separators, empty ones too.
std::vector<std::string_view> split(std::string_view text, char separator);

/// Whether the pattern matches the whole name: * any characters, ? one, [a-c] and [!a-c] one of a
/// set.
bool matches_pattern(const std::string& pattern, const std::string& name);

/// `text` as content or attribute of XML; control characters become spaces.
std::string xml_escaped(std::string_view text);

/// `text` as one word of a shell: in quotation marks where it needs them.
std::string shell_word(std::string_view text);

/// Folds lines of more than `columns` bytes between words. Text after two spaces, as in the second
/// column of a table, is continued in the same column. Commands ("pentatron ...") are not split.
std::string fold_lines(std::string_view text, size_t columns);

/// At most `limit` bytes of `text`, cut between characters and followed by "..." where something is
/// missing; control characters become '?'. For showing foreign text in a message.
std::string excerpt(std::string_view text, size_t limit = 60);

} // namespace pentatron
