/// The filters, tests and methods of chat templates.
#pragma once

#include <cstdint>
#include <string_view>

#include "pentatron/data/tokenizer/chat/text_functions.h"
#include "pentatron/data/tokenizer/chat/value.h"

namespace pentatron::data::tokenizer::chat {

/// `html_json`: of TemplateRules. Throws DataError for a name that is not known, for values that
/// have no such filter and for arguments that it does not have.
Value apply_filter(std::string_view name, const Value& value, const Arguments& arguments,
                   bool html_json);
bool apply_test(std::string_view name, const Value& value, const Arguments& arguments);
/// Of strings, lists and dictionaries.
bool has_method(const Value& value, std::string_view name);
Value call_method(const Value& self, std::string_view name, const Arguments& arguments);

/// range, dict, namespace and raise_exception.
Value call_function(std::string_view name, const Arguments& arguments);
/// Throws DataError for what cannot be the key of a dictionary.
void check_dictionary_key(const Value& key);

/// a.name and a["name"]. Of a dictionary that has a method and a key of that name, the first is the
/// method, the second the value.
enum class Access : uint8_t { kDot, kBrackets };
/// The member `name` of a value; undefined if it does not exist.
Value member_of(const Value& value, std::string_view name, Access access);
/// The element i of a list, text or dictionary; undefined if it does not exist.
Value element_of(const Value& v, int64_t i);

} // namespace pentatron::data::tokenizer::chat
