/// Splits text into sentences with a simple rule, for languages whose sentences end with a period
/// or a full stop.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace pentatron::data {

/// The sentences of a text, without the white space around them. A sentence ends at an empty line;
/// at one of . ! ? and the ellipsis, with closing quotes and brackets after it, where white space
/// and no small letter follows; and at a full stop, ! or ? of Chinese and Japanese. A point does
/// not end one behind a single capital letter or one of the abbreviations Mr Mrs Ms Dr St Prof Jr
/// Sr vs.
std::vector<std::string_view> split_sentences(std::string_view text);

/// The sentences as each is encoded: after a space if white space separates it from the one before.
std::vector<std::string> spaced_sentences(std::string_view text);

} // namespace pentatron::data
