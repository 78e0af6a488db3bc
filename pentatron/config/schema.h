/// A config struct with its type erased, which the implementation of config uses. Authors of
/// structs only need field.h, callers only config.h.
#pragma once

#include <concepts>
#include <cstddef>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <variant>

#include "pentatron/config/field.h"

namespace pentatron::config {

/// A value between text and member. Enums travel as their number; monostate is an empty optional.
struct Value {
  std::variant<std::monostate, bool, int64_t, double, std::string, std::vector<Value>> data;
  bool operator==(const Value&) const = default;
};

enum class Kind : uint8_t { kBool, kInt, kDouble, kString, kEnum, kOptional, kList };

struct NamedValue {
  std::string_view name;
  int64_t value;
};

struct TypeInfo {
  Kind kind;
  const TypeInfo* element = nullptr; ///< of an optional or list
  std::span<const NamedValue> names; ///< of an enum
  int64_t lowest = 0;                ///< of an integer
  int64_t highest = 0;
  Value (*read)(const void* member) = nullptr;
  void (*write)(void* member, const Value& value) = nullptr; ///< `value` is of this kind
};

struct Schema;

struct Entry {
  std::string_view name;
  std::string_view help;
  FieldTraits traits;
  size_t offset = 0;               ///< of the member in its struct
  const TypeInfo* type = nullptr;  ///< null for a section
  const Schema* section = nullptr; ///< null for a value
};

struct Schema {
  std::vector<Entry> entries;
  std::shared_ptr<const void> defaults; ///< a default-constructed struct
  void (*validate)(const void* object, Violations& violations, std::string_view path) = nullptr;
};

template <class C>
concept Section = requires {
  C::fields();
};

template <Section C> const Schema& schema_of();

/// Throws Error if two fields share a name or a name is not lower case: a mistake in the struct.
void check_schema(const Schema& schema);

namespace detail {

template <class T> struct IsOptional : std::false_type {};
template <class T> struct IsOptional<std::optional<T>> : std::true_type {};
template <class T> struct IsVector : std::false_type {};
template <class T> struct IsVector<std::vector<T>> : std::true_type {};

template <class T> const TypeInfo& type_of();

template <class E> std::span<const NamedValue> names_of() {
  static constexpr auto names = [] {
    constexpr auto source = enum_names(E{});
    std::array<NamedValue, source.size()> out{};
    for (size_t i = 0; i < source.size(); ++i) {
      out[i] = {source[i].name, static_cast<int64_t>(source[i].value)};
    }
    return out;
  }();
  return names;
}

template <class T> Value read(const void* member) {
  const T& v = *static_cast<const T*>(member);
  if constexpr (std::is_same_v<T, bool> || std::is_same_v<T, std::string>) {
    return {v};
  } else if constexpr (std::is_integral_v<T> || std::is_enum_v<T>) {
    return {static_cast<int64_t>(v)};
  } else if constexpr (std::is_floating_point_v<T>) {
    return {static_cast<double>(v)};
  } else if constexpr (IsOptional<T>::value) {
    return v ? type_of<typename T::value_type>().read(&*v) : Value{};
  } else {
    std::vector<Value> list;
    for (const typename T::value_type& item : v) {
      list.push_back(read<typename T::value_type>(&item));
    }
    return {std::move(list)};
  }
}

template <class T> void write(void* member, const Value& value) {
  T& v = *static_cast<T*>(member);
  if constexpr (std::is_same_v<T, bool> || std::is_same_v<T, std::string>) {
    v = std::get<T>(value.data);
  } else if constexpr (std::is_integral_v<T> || std::is_enum_v<T>) {
    v = static_cast<T>(std::get<int64_t>(value.data));
  } else if constexpr (std::is_floating_point_v<T>) {
    v = static_cast<T>(std::get<double>(value.data));
  } else if constexpr (IsOptional<T>::value) {
    v.reset();
    if (!std::holds_alternative<std::monostate>(value.data))
      write<typename T::value_type>(&v.emplace(), value);
  } else {
    v.clear();
    for (const Value& item : std::get<std::vector<Value>>(value.data)) {
      typename T::value_type element{};
      write<typename T::value_type>(&element, item);
      v.push_back(std::move(element));
    }
  }
}

template <class T> TypeInfo make_type() {
  TypeInfo info{};
  info.read = &read<T>;
  info.write = &write<T>;
  if constexpr (std::is_same_v<T, bool>) {
    info.kind = Kind::kBool;
  } else if constexpr (std::is_integral_v<T>) {
    info.kind = Kind::kInt;
    info.lowest = std::is_signed_v<T> ? static_cast<int64_t>(std::numeric_limits<T>::min()) : 0;
    info.highest = std::cmp_less(std::numeric_limits<T>::max(), std::numeric_limits<int64_t>::max())
                       ? static_cast<int64_t>(std::numeric_limits<T>::max())
                       : std::numeric_limits<int64_t>::max();
  } else if constexpr (std::is_floating_point_v<T>) {
    info.kind = Kind::kDouble;
  } else if constexpr (std::is_same_v<T, std::string>) {
    info.kind = Kind::kString;
  } else if constexpr (std::is_enum_v<T>) {
    info.kind = Kind::kEnum;
    info.names = names_of<T>();
  } else if constexpr (IsOptional<T>::value) {
    info.kind = Kind::kOptional;
    info.element = &type_of<typename T::value_type>();
  } else {
    static_assert(IsVector<T>::value, "not a config field type: see config/field.h");
    info.kind = Kind::kList;
    info.element = &type_of<typename T::value_type>();
  }
  return info;
}

template <class T> const TypeInfo& type_of() {
  static const TypeInfo info = make_type<T>();
  return info;
}

template <class C, class T> Entry make_entry(const Field<C, T>& field, const C& object) {
  Entry entry{.name = field.name, .help = field.help, .traits = field.traits};
  entry.offset = static_cast<size_t>(reinterpret_cast<const std::byte*>(&(object.*field.member)) -
                                     reinterpret_cast<const std::byte*>(&object));
  if constexpr (Section<T>) {
    entry.section = &schema_of<T>();
  } else {
    entry.type = &type_of<T>();
  }
  return entry;
}

template <Section C> Schema make_schema() {
  Schema schema;
  const auto defaults = std::make_shared<const C>();
  std::apply(
      [&](const auto&... field) { (schema.entries.push_back(make_entry(field, *defaults)), ...); },
      C::fields());
  schema.defaults = defaults;
  if constexpr (requires(const C& c, Violations& v, std::string_view p) { c.validate(v, p); }) {
    schema.validate = [](const void* object, Violations& violations, std::string_view path) {
      static_cast<const C*>(object)->validate(violations, path);
    };
  }
  check_schema(schema);
  return schema;
}

} // namespace detail

template <Section C> const Schema& schema_of() {
  static const Schema schema = detail::make_schema<C>();
  return schema;
}

} // namespace pentatron::config
