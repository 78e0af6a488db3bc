/// Text to values and back, as a field's type says. Internal to config.
#pragma once

#include "pentatron/config/node.h"
#include "pentatron/config/schema.h"

namespace pentatron::config {

/// A value, or why the text is not one.
struct Parsed {
  std::optional<Value> value;
  std::string cause;         ///< follows "path=text": "is not an integer"
  std::string suggestion;    ///< a text that works, or empty
  bool out_of_range = false; ///< an integer that the type does not hold; the nearest is suggested
};

Parsed parse_value(const TypeInfo& type, const Node& node);

/// The node that an override's right-hand side means for `type`; syntax errors become violations
/// and give nothing.
std::optional<Node> override_node(const TypeInfo& type, std::string_view text,
                                  std::string_view where, Violations& violations);

/// As YAML spells it, on one line: strings are quoted where they have to be.
std::string format_value(const TypeInfo& type, const Value& value);

/// The shortest decimal that reads back as the same double.
std::string format_number(double value);

/// The names of an enum, each value once: as it is written.
std::vector<std::string> value_names(const TypeInfo& type);

/// "an integer", "a list, each a string", "one of layernorm, rmsnorm", "a number or null".
std::string type_name(const TypeInfo& type);

/// The type with its constraints: "an integer from 1 to 8", "null, or a number > 0".
std::string value_text(const TypeInfo& type, const FieldTraits& traits);

/// ">= 1, multiple of 8"; empty without constraints.
std::string constraint_text(const FieldTraits& traits);
/// The same of an integer, with the bounds of its type.
std::string range_text(const TypeInfo& type, const FieldTraits& traits);

inline Value read_entry(const Entry& entry, const void* object) {
  return entry.type->read(static_cast<const std::byte*>(object) + entry.offset);
}
/// The field that says which fields the section has; null: it has them all.
inline const Entry* selecting_entry(const Schema& schema) {
  for (const Entry& entry : schema.entries)
    if (entry.traits.selects_variant) return &entry;
  return nullptr;
}
/// The field that decides whether another one has an effect; null: none does.
inline const Entry* needed_entry(const Schema& schema, const Entry& entry) {
  for (const Entry& other : schema.entries)
    if (other.name == entry.traits.needs) return &other;
  return nullptr;
}
/// Whether the value of the enum is among the bits.
inline bool is_among(uint32_t values, const Entry& choice, const void* object) {
  return (values >> std::get<int64_t>(read_entry(choice, object).data) & 1) != 0;
}
/// Whether the section has the field, as `object` is.
inline bool is_of_variant(const Schema& schema, const Entry& entry, const void* object) {
  return entry.traits.variants == ~uint32_t{0} ||
         is_among(entry.traits.variants, *selecting_entry(schema), object);
}
/// Whether it also has an effect.
inline bool is_present(const Schema& schema, const Entry& entry, const void* object) {
  const Entry* const needed = needed_entry(schema, entry);
  return is_of_variant(schema, entry, object) &&
         (needed == nullptr || is_among(entry.traits.needed, *needed, object));
}
inline const void* section_of(const Entry& entry, const void* object) {
  return static_cast<const std::byte*>(object) + entry.offset;
}

} // namespace pentatron::config
