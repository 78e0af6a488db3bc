#include <algorithm>
#include <cmath>
#include <map>

#include <nlohmann/json.hpp>

#include "pentatron/base/error.h"
#include "pentatron/base/text.h"
#include "pentatron/config/config.h"
#include "pentatron/config/paths.h"
#include "pentatron/config/value.h"

namespace pentatron::config::detail {

namespace {

using Json = nlohmann::ordered_json;

/// The sections in order, each with its help and its own values; the top level first.
struct Group {
  std::string path;
  std::string_view help;
  std::vector<FieldInfo> fields;
};

std::vector<std::string> values_of(const TypeInfo& type) {
  if (type.kind == Kind::kOptional || type.kind == Kind::kList) return values_of(*type.element);
  if (type.kind == Kind::kBool) return {"true", "false"};
  return value_names(type);
}

void group(const Schema& schema, const void* defaults, const std::string& path,
           std::string_view help, std::vector<Group>& out) {
  const size_t index = out.size();
  out.push_back({path, help, {}});
  for (const Entry& entry : schema.entries) {
    const std::string full = join(path, entry.name);
    if (entry.section != nullptr) {
      group(*entry.section, section_of(entry, defaults), full, entry.help, out);
      continue;
    }
    out[index].fields.push_back(
        {.path = full,
         .type = type_name(*entry.type),
         .default_value = format_value(*entry.type, read_entry(entry, defaults)),
         .constraint = constraint_text(entry.traits),
         .value = value_text(*entry.type, entry.traits),
         .unit = std::string(entry.traits.unit),
         .help = std::string(entry.help),
         .values = values_of(*entry.type)});
  }
}

std::vector<Group> groups(const Schema& schema) {
  std::vector<Group> out;
  group(schema, schema.defaults.get(), "", "", out);
  std::erase_if(out, [](const Group& g) { return g.fields.empty(); });
  return out;
}

/// "an integer from 1 to 8, in tokens".
std::string value_and_unit(const FieldInfo& field) {
  return field.unit.empty() ? field.value : field.value + ", in " + field.unit;
}

/// One section: its name and help, and a line for each of `fields`.
void append_group(const Group& g, const std::vector<FieldInfo>& fields, std::string& out) {
  if (!out.empty()) out += '\n';
  if (!g.path.empty()) out += g.path;
  if (!g.help.empty()) out += fmt::format(": {}", g.help);
  if (!g.path.empty()) out += '\n';
  size_t width = 0;
  for (const FieldInfo& f : fields)
    width = std::max(width, f.path.size() + f.default_value.size() + 1);
  width = std::min<size_t>(width, 48);
  for (const FieldInfo& f : fields) {
    const std::string assignment = fmt::format("{}={}", f.path, f.default_value);
    out += fmt::format("  {:<{}}  {} ({})\n", assignment, width, f.help, value_and_unit(f));
  }
}

/// All that is known of one key, a line each.
std::string key_help(const Group& g, const FieldInfo& f) {
  std::string out = fmt::format("{}: {}\n", f.path, f.help);
  const auto line = [&](const char* name, std::string_view text) {
    if (!text.empty()) out += fmt::format("  {:<8} {}\n", name, text);
  };
  line("type", f.type);
  line("default", f.default_value);
  line("range", f.constraint);
  line("unit", f.unit);
  line("section", g.path.empty() ? "top level" : fmt::format("{}: {}", g.path, g.help));
  return out;
}

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c + 32);
  return out;
}

/// Whether every word of `words` is a part of the key or of its help.
bool mentions(const FieldInfo& f, std::string_view words) {
  const std::string text = lower(f.path + " " + f.help);
  bool any = false;
  for (const std::string_view word : split(words, ' ')) {
    if (word.empty()) continue;
    any = true;
    if (text.find(lower(word)) == std::string::npos) return false;
  }
  return any;
}

Json to_json(const TypeInfo& type, const Value& value) {
  switch (type.kind) {
  case Kind::kBool:
    return std::get<bool>(value.data);
  case Kind::kInt:
    return std::get<int64_t>(value.data);
  case Kind::kDouble:
    return std::get<double>(value.data);
  case Kind::kString:
    return std::get<std::string>(value.data);
  case Kind::kEnum:
    return format_value(type, value);
  case Kind::kOptional:
    return std::holds_alternative<std::monostate>(value.data) ? Json(nullptr)
                                                              : to_json(*type.element, value);
  case Kind::kList:
    break;
  }
  Json list = Json::array();
  for (const Value& item : std::get<std::vector<Value>>(value.data)) {
    list.push_back(to_json(*type.element, item));
  }
  return list;
}

Json bound(const TypeInfo& type, double value) {
  return type.kind == Kind::kInt ? Json(static_cast<int64_t>(value)) : Json(value);
}

Json value_schema(const TypeInfo& type, const FieldTraits& traits) {
  Json json = Json::object();
  switch (type.kind) {
  case Kind::kOptional:
    json["anyOf"] = Json::array({value_schema(*type.element, traits), Json{{"type", "null"}}});
    return json;
  case Kind::kBool:
    json["type"] = "boolean";
    return json;
  case Kind::kEnum:
    json["enum"] = Json::array();
    for (const NamedValue& named : type.names) json["enum"].push_back(named.name);
    return json;
  case Kind::kString:
    json["type"] = "string";
    if (traits.not_empty) json["minLength"] = 1;
    return json;
  case Kind::kList: {
    json["type"] = "array";
    FieldTraits element = traits;
    element.not_empty = element.or_one = false;
    json["items"] = value_schema(*type.element, element);
    if (traits.not_empty) json["minItems"] = 1;
    if (traits.or_one) json = {{"anyOf", Json::array({json, json["items"]})}};
    return json;
  }
  case Kind::kInt:
    json["type"] = "integer";
    break;
  case Kind::kDouble:
    json["type"] = "number";
    break;
  }
  if (std::isfinite(traits.min)) {
    json[traits.min_excluded ? "exclusiveMinimum" : "minimum"] = bound(type, traits.min);
  }
  if (std::isfinite(traits.max)) {
    json[traits.max_excluded ? "exclusiveMaximum" : "maximum"] = bound(type, traits.max);
  }
  if (traits.multiple_of != 1) json["multipleOf"] = traits.multiple_of;
  return json;
}

Json section_schema(const Schema& schema, const void* defaults) {
  Json json{{"type", "object"}, {"additionalProperties", false}, {"properties", Json::object()}};
  for (const Entry& entry : schema.entries) {
    Json property;
    if (entry.section != nullptr) {
      property = section_schema(*entry.section, section_of(entry, defaults));
    } else {
      property = value_schema(*entry.type, entry.traits);
      const Json standard = to_json(*entry.type, read_entry(entry, defaults));
      const bool finite = !standard.is_number_float() || std::isfinite(standard.get<double>());
      if (finite) property["default"] = standard;
    }
    std::string description(entry.help);
    if (!entry.traits.unit.empty()) description += fmt::format(" [{}]", entry.traits.unit);
    property["description"] = description;
    json["properties"][std::string(entry.name)] = std::move(property);
  }
  return json;
}

std::string escape_cell(std::string_view text) {
  std::string out;
  for (const char c : text) out += c == '|' ? "\\|" : std::string(1, c);
  return out;
}

} // namespace

std::vector<FieldInfo> list_fields(const Schema& schema) {
  std::map<std::string, FieldInfo> by_path;
  for (Group& g : groups(schema)) {
    for (FieldInfo& field : g.fields) by_path.emplace(field.path, std::move(field));
  }
  std::vector<FieldInfo> out;
  walk(schema, schema.defaults.get(),
       [&](const std::string& path, const Entry&, const void*) { out.push_back(by_path[path]); });
  return out;
}

std::vector<SectionInfo> list_sections(const Schema& schema) {
  std::vector<SectionInfo> out;
  for (const Entry& entry : schema.entries)
    if (entry.section != nullptr) out.push_back({std::string(entry.name), std::string(entry.help)});
  return out;
}

std::string help(const Schema& schema, std::string_view what) {
  const std::vector<Group> all = groups(schema);
  std::string out;
  for (const Group& g : all) {
    if (what.empty() || g.path == what || g.path.starts_with(join(what, "")))
      append_group(g, g.fields, out);
    for (const FieldInfo& f : g.fields)
      if (f.path == what) return key_help(g, f);
  }
  if (!out.empty()) return out;
  for (const Group& g : all) {
    std::vector<FieldInfo> found;
    std::ranges::copy_if(g.fields, std::back_inserter(found),
                         [&](const FieldInfo& f) { return mentions(f, what); });
    if (!found.empty()) append_group(g, found, out);
  }
  if (!out.empty()) return out;
  const std::string near = nearest_path(schema, nullptr, what);
  raise<ConfigError>("no section, key or help text contains '{}'\n  try: pentatron config help{}{}",
                     excerpt(what), near.empty() ? "" : " ", near);
}

std::string json_schema(const Schema& schema, std::string_view title) {
  Json json{{"$schema", "https://json-schema.org/draft/2020-12/schema"}, {"title", title}};
  json.update(section_schema(schema, schema.defaults.get()));
  const Json name{{"type", "string"}, {"minLength", 1}};
  json["properties"][std::string(kIncludeKey)] =
      Json{{"anyOf", Json::array({name, Json{{"type", "array"}, {"items", name}}})},
           {"description", "configuration files to apply first, relative to this file"}};
  return json.dump(2) + "\n";
}

std::string markdown(const Schema& schema) {
  std::string out;
  for (const Group& g : groups(schema)) {
    out += fmt::format("{}## {}\n\n", out.empty() ? "" : "\n",
                       g.path.empty() ? "Top level" : fmt::format("`{}`", g.path));
    if (!g.help.empty()) out += fmt::format("{}.\n\n", g.help);
    out += "| key | default | value | meaning |\n|---|---|---|---|\n";
    for (const FieldInfo& f : g.fields) {
      out += fmt::format("| `{}` | `{}` | {} | {} |\n", f.path, escape_cell(f.default_value),
                         escape_cell(value_and_unit(f)), escape_cell(f.help));
    }
  }
  return out;
}

} // namespace pentatron::config::detail
