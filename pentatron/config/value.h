/// Text to values and back, as a field's type says. Internal to config.
#pragma once

#include "pentatron/config/node.h"
#include "pentatron/config/schema.h"

namespace pentatron::config {

/// A value, or why the text is not one.
struct Parsed {
  std::optional<Value> value;
  std::string cause;      ///< follows "path=text": "is not an integer"
  std::string suggestion; ///< a text that works, or empty
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

/// "integer", "list of string", "one of rms, layernorm", "number or null".
std::string type_name(const TypeInfo& type);

/// ">= 1, multiple of 8"; empty without constraints.
std::string constraint_text(const FieldTraits& traits);

inline Value read_entry(const Entry& entry, const void* object) {
  return entry.type->read(static_cast<const std::byte*>(object) + entry.offset);
}
/// The field that says which fields the section has; null: it has them all.
inline const Entry* selecting_entry(const Schema& schema) {
  for (const Entry& entry : schema.entries)
    if (entry.traits.selects_variant) return &entry;
  return nullptr;
}
/// Whether the section has the field, as `object` is.
inline bool is_present(const Schema& schema, const Entry& entry, const void* object) {
  if (entry.traits.variants == ~uint32_t{0}) return true;
  const int64_t variant = std::get<int64_t>(read_entry(*selecting_entry(schema), object).data);
  return (entry.traits.variants >> variant & 1) != 0;
}
inline const void* section_of(const Entry& entry, const void* object) {
  return static_cast<const std::byte*>(object) + entry.offset;
}

} // namespace pentatron::config
