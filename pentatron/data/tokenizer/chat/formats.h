/// Python's two languages of formats: "%d" % x and "{:d}".format(x).
#pragma once

#include <string>

#include "pentatron/data/tokenizer/chat/text_functions.h"

namespace pentatron::data::tokenizer::chat {

/// text % arguments: %s, %r, %c, %d, %i, %u, %x, %X, %o, %e, %f, %g with flags, width and
/// precision,
/// %(name)s, and %%. Throws DataError for other formats, and for values that have no such format.
std::string percent_format(const std::string& text, const Arguments& arguments);

/// str.format: {}, {0}, {name}, {0.member[1]}, {!r}, {:>8.2f}, {{ and }}. Throws DataError for
/// other formats, as for fields in the specification of one, and for values that have no such
/// format.
std::string brace_format(const std::string& text, const Arguments& arguments);

} // namespace pentatron::data::tokenizer::chat
