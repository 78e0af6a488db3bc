/// The filters of templates that go through lists and dictionaries.
#pragma once

#include <optional>
#include <string_view>

#include "pentatron/data/tokenizer/chat/text_functions.h"
#include "pentatron/data/tokenizer/chat/value.h"

namespace pentatron::data::tokenizer::chat {

/// The pairs of a dictionary.
List items_of(const Value& v);
/// Nothing if there is no such filter among them. The arguments have been checked; `html_json`: of
/// TemplateRules, for the filters that map applies. Throws DataError for values that have no such
/// filter.
std::optional<Value> apply_list_filter(std::string_view name, const Value& value,
                                       const Arguments& arguments, bool html_json);

} // namespace pentatron::data::tokenizer::chat
