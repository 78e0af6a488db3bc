/// Loads, checks, compares, saves and explains config structs (field.h tells how a struct describes
/// itself).
///
///   TrainConfig config;
///   config::Violations violations;
///   config::apply_file(config, "run.yaml", violations);  // and the files it includes
///   config::apply_override(config, "model.num_layers=24", violations);
///   config::validate(config, violations);
///   violations.throw_if_any();  // one ConfigError that lists everything
///
/// The type of the field determines how text is parsed, never the text itself:
///   bool      true, false
///   integer   decimal; also 1_000, 1e3 and 2.5e3; 010 and 0x10 are ambiguous and not allowed
///   number    decimal, .inf, -.inf; never NaN
///   string    any valid UTF-8, unchanged
///   enum      one of its names
///   optional  null, or a value
///   list      [a, b] or a YAML block list
/// YAML is limited to the features that a configuration needs: duplicate keys, tags, anchors,
/// aliases, several documents, more than 1 MiB of text and more than 16 levels are violations. An
/// unknown key is a violation that suggests a similar key.
#pragma once

#include <filesystem>
#include <set>

#include "pentatron/config/schema.h"

namespace pentatron::config {

/// One key whose value differs, both as YAML spells them.
struct Difference {
  std::string path;
  std::string before;
  std::string after;
  OnResume on_resume = OnResume::kTold; ///< resolved: never kInherited
  bool of_task = false;                 ///< see Field::of_task()
};

/// One key, for programs that walk all of them.
struct FieldInfo {
  std::string path;
  std::string type; ///< "an integer", "a list, each a string", "one of a, b", ...
  std::string default_value;
  std::string constraint; ///< ">= 1", or empty
  std::string value;      ///< type and constraint: "an integer >= 1"
  std::string unit;
  std::string help;
  std::vector<std::string> values; ///< of a boolean or an enum, also where it may be null or a list
};

/// One section of the top level.
struct SectionInfo {
  std::string name;
  std::string help;
};

namespace detail {
void apply_yaml(const Schema& schema, void* object, std::string_view text, std::string_view origin,
                Violations& violations);
void apply_file(const Schema& schema, void* object, const std::filesystem::path& file,
                Violations& violations);
void apply_override(const Schema& schema, void* object, std::string_view assignment,
                    Violations& violations);
bool fields_hold(const Schema& schema, const void* object);
void validate(const Schema& schema, const void* object, Violations& violations,
              std::string_view path);
std::string to_yaml(const Schema& schema, const void* object);
std::vector<Difference> diff(const Schema& schema, const void* before, const void* after);
std::string get(const Schema& schema, const void* object, std::string_view path);
std::vector<FieldInfo> list_fields(const Schema& schema);
std::vector<SectionInfo> list_sections(const Schema& schema);
std::string help(const Schema& schema, std::string_view what);
std::string json_schema(const Schema& schema, std::string_view title);
std::string markdown(const Schema& schema);
std::string hash(const Schema& schema, const void* object, const std::set<OnResume>& without);
} // namespace detail

/// Assigns the values in `text`; other fields keep their values. `origin` names the text in
/// violations ("run.yaml").
template <Section C>
void apply_yaml(C& config, std::string_view text, std::string_view origin, Violations& violations) {
  detail::apply_yaml(schema_of<C>(), &config, text, origin, violations);
}

/// The key of a file that names other files to apply first: include: [base.yaml].
inline constexpr std::string_view kIncludeKey = "include";

/// Like apply_yaml(), for a file. First applies the files that its key `include` names (one or a
/// list, relative to the file). A file that cannot be read, includes itself or includes too many is
/// a violation.
template <Section C>
void apply_file(C& config, const std::filesystem::path& file, Violations& violations) {
  detail::apply_file(schema_of<C>(), &config, file, violations);
}

/// Applies "section.key=value"; lists as [a, b], whole sections as section={key: value}.
template <Section C>
void apply_override(C& config, std::string_view assignment, Violations& violations) {
  detail::apply_override(schema_of<C>(), &config, assignment, violations);
}

/// Checks every constraint, then the rules between the fields of every section, innermost first.
/// The rules of a section are checked only if all its values satisfy their constraints.
template <Section C> void validate(const C& config, Violations& violations) {
  detail::validate(schema_of<C>(), &config, violations, "");
}

/// Whether every constraint of a section holds, so that its values can be used in computations.
template <Section C> bool fields_hold(const C& config) {
  return detail::fields_hold(schema_of<C>(), &config);
}

/// Every field as YAML; reading it back gives the same values, numbers bit for bit.
template <Section C> std::string to_yaml(const C& config) {
  return detail::to_yaml(schema_of<C>(), &config);
}

/// The keys whose values differ, in the order of the structs.
template <Section C> std::vector<Difference> diff(const C& before, const C& after) {
  return detail::diff(schema_of<C>(), &before, &after);
}

/// The value at a dotted path as YAML spells it. Throws ConfigError for an unknown path.
template <Section C> std::string get(const C& config, std::string_view path) {
  return detail::get(schema_of<C>(), &config, path);
}

/// Every key of the struct and its sections, in order.
template <Section C> std::vector<FieldInfo> list_fields() {
  return detail::list_fields(schema_of<C>());
}

/// The sections of the top level, in order.
template <Section C> std::vector<SectionInfo> list_sections() {
  return detail::list_sections(schema_of<C>());
}

/// Explains keys. `what` is empty (all keys, grouped by section), a section, a key, or words to
/// search for in the names and help of keys. Throws ConfigError if nothing is found.
template <Section C> std::string help(std::string_view what = {}) {
  return detail::help(schema_of<C>(), what);
}

/// A JSON Schema (draft 2020-12) that accepts the YAML files which validate() accepts, but for
/// rules between fields.
template <Section C> std::string json_schema(std::string_view title = "pentatron") {
  return detail::json_schema(schema_of<C>(), title);
}

/// The reference tables of docs/configuration.md.
template <Section C> std::string markdown() {
  return detail::markdown(schema_of<C>());
}

/// 16 hexadecimal digits that depend on every path and value, except for fields of the meanings
/// `without`, and on nothing else: not on the order of the fields.
template <Section C> std::string hash(const C& config, const std::set<OnResume>& without = {}) {
  return detail::hash(schema_of<C>(), &config, without);
}

/// The lines "path: before -> after".
std::string to_text(const std::vector<Difference>& differences);

} // namespace pentatron::config
