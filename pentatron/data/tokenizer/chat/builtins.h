/// The filters, tests and methods of chat templates.
#pragma once

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

/// Throws DataError for a name that is not known and for values that have no such filter.
Value apply_filter(std::string_view name, const Value& value, const Arguments& arguments);
bool apply_test(std::string_view name, const Value& value, const Arguments& arguments);
/// Of strings, lists and dictionaries.
bool has_method(const Value& value, std::string_view name);
Value call_method(const Value& self, std::string_view name, const Arguments& arguments);

/// The member `name` of a value; undefined if it does not exist.
Value member_of(const Value& value, std::string_view name);

/// Larger values are refused.
inline constexpr size_t kMaxValueBytes = size_t{16} << 20;

} // namespace pentatron::data::tokenizer::chat
