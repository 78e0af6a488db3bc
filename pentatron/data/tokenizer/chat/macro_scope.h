/// The variables of a macro that is called.
#pragma once

#include "pentatron/data/tokenizer/chat/interpreter.h"
#include "pentatron/data/tokenizer/chat/parser.h"
#include "pentatron/data/tokenizer/chat/text_functions.h"

namespace pentatron::data::tokenizer::chat {

inline constexpr const char* kCaller = "caller";

/// Its arguments by name, without those that have defaults and are not given; and of varargs,
/// kwargs and caller those that it reads. Throws DataError for arguments that it does not have.
Scope macro_scope(const Node& macro, const Arguments& given);

} // namespace pentatron::data::tokenizer::chat
