/// The operators of chat templates: Python's, on integers of 64 bits.
#pragma once

#include <string_view>

#include "pentatron/data/tokenizer/chat/value.h"

namespace pentatron::data::tokenizer::chat {

/// `left` op `right` for +, -, *, /, //, %, ** and ~. Throws DataError for types that have no such
/// operator, and for integers, strings and lists that are too large.
Value apply_operator(std::string_view op, const Value& left, const Value& right);

} // namespace pentatron::data::tokenizer::chat
