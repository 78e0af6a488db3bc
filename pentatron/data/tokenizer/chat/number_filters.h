/// The filters of templates that make numbers: int, float, round, abs and sum.
#pragma once

#include "pentatron/data/tokenizer/chat/text_functions.h"
#include "pentatron/data/tokenizer/chat/value.h"

namespace pentatron::data::tokenizer::chat {

/// The arguments are `default` and `base`: a text that is no number gives the first. These throw
/// DataError for integers beyond 64 bits.
Value to_int(const Value& v, const Arguments& arguments);
Value to_float(const Value& v, const Arguments& arguments);
/// The arguments are `precision` and `method`: common (Python's round), ceil or floor.
Value rounded(const Value& v, const Arguments& arguments);
Value absolute(const Value& v);
/// `start` and all items: numbers or lists.
Value sum(const List& items, const Value& start);

} // namespace pentatron::data::tokenizer::chat
