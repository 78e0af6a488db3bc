/// Reads JSON from external sources with limits, using nlohmann/json. Everything that is not valid
/// is a DataError.
#pragma once

#include <concepts>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "pentatron/base/error.h"

namespace pentatron {

using Json = nlohmann::json;
/// Whose members keep the order of the text.
using OrderedJson = nlohmann::ordered_json;

struct JsonLimits {
  size_t max_bytes = size_t{256} << 20;
  int max_depth = 64;
};

/// One JSON value that fills `text`. Duplicate keys are refused. `origin` names the text in
/// messages. Throws DataError for anything that is not JSON within the limits.
Json parse_json(std::string_view text, std::string_view origin, const JsonLimits& limits = {});
OrderedJson parse_ordered_json(std::string_view text, std::string_view origin,
                               const JsonLimits& limits = {});

/// Like parse_json(), for the content of a file. Throws DataError if the file cannot be read.
Json read_json(const std::filesystem::path& file, const JsonLimits& limits = {});
OrderedJson read_ordered_json(const std::filesystem::path& file, const JsonLimits& limits = {});

/// Compact with indent < 0. Never throws: text that is not UTF-8 gets replacement characters, NaN
/// and infinity become null.
std::string dump_json(const Json& json, int indent = -1);

namespace detail {
const Json* json_find(const Json& object, std::string_view key);
[[noreturn]] void json_missing(std::string_view key, std::string_view where);
[[noreturn]] void json_wrong(std::string_view key, const Json& value, std::string_view type,
                             std::string_view where);

template <class T> struct IsVector : std::false_type {};
template <class T> struct IsVector<std::vector<T>> : std::true_type {};

template <class T> T json_convert(const Json& v, std::string_view key, std::string_view where) {
  if constexpr (std::same_as<T, bool>) {
    if (!v.is_boolean()) json_wrong(key, v, "a boolean", where);
    return v.template get<bool>();
  } else if constexpr (std::same_as<T, int64_t>) {
    if (!v.is_number_integer() ||
        (v.is_number_unsigned() &&
         v.template get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()})) {
      json_wrong(key, v, "a 64-bit integer", where);
    }
    return v.template get<int64_t>();
  } else if constexpr (std::same_as<T, double>) {
    if (!v.is_number()) json_wrong(key, v, "a number", where);
    return v.template get<double>();
  } else if constexpr (std::same_as<T, std::string>) {
    if (!v.is_string()) json_wrong(key, v, "a string", where);
    return v.template get<std::string>();
  } else {
    static_assert(IsVector<T>::value, "bool, int64_t, double, std::string or a vector of them");
    if (!v.is_array()) json_wrong(key, v, "a list", where);
    T list;
    for (const Json& item : v)
      list.push_back(json_convert<typename T::value_type>(item, key, where));
    return list;
  }
}
} // namespace detail

/// The member `key` of `object` as bool, int64_t, double, std::string or a vector of these. Nothing
/// is converted: the string "1" is not a number and 1.0 is not an integer. `where` names the object
/// in messages. Throws DataError if it is missing or of another type.
template <class T> T json_get(const Json& object, std::string_view key, std::string_view where) {
  const Json* value = detail::json_find(object, key);
  if (value == nullptr) detail::json_missing(key, where);
  return detail::json_convert<T>(*value, key, where);
}

/// Like json_get(), but returns `otherwise` if the member is missing or null.
template <class T>
T json_get_or(const Json& object, std::string_view key, T otherwise, std::string_view where) {
  const Json* value = detail::json_find(object, key);
  if (value == nullptr || value->is_null()) return otherwise;
  return detail::json_convert<T>(*value, key, where);
}

} // namespace pentatron
