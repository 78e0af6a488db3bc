/// The filters, tests and methods of chat templates.
#pragma once

#include <cstdint>
#include <string_view>

#include "pentatron/data/tokenizer/chat/text_functions.h"
#include "pentatron/data/tokenizer/chat/value.h"

namespace pentatron::data::tokenizer::chat {

/// Throws DataError for a name that is not known and for values that have no such filter.
Value apply_filter(std::string_view name, const Value& value, const Arguments& arguments);
bool apply_test(std::string_view name, const Value& value, const Arguments& arguments);
/// Of strings, lists and dictionaries.
bool has_method(const Value& value, std::string_view name);
Value call_method(const Value& self, std::string_view name, const Arguments& arguments);

/// a.name and a["name"]. Of a dictionary that has a method and a key of that name, the first is the
/// method, the second the value.
enum class Access : uint8_t { kDot, kBrackets };
/// The member `name` of a value; undefined if it does not exist.
Value member_of(const Value& value, std::string_view name, Access access);

} // namespace pentatron::data::tokenizer::chat
