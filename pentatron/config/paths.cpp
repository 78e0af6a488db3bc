#include "pentatron/config/paths.h"

#include <algorithm>
#include <cctype>

#include "pentatron/base/error.h"
#include "pentatron/base/nearest.h"
#include "pentatron/base/text.h"
#include "pentatron/config/common_names.h"
#include "pentatron/config/megatron_names.h"
#include "pentatron/config/value.h"

namespace pentatron::config {

namespace {

std::string_view last_name(std::string_view path) {
  const size_t dot = path.rfind('.');
  return dot == std::string_view::npos ? path : path.substr(dot + 1);
}

/// Whether the section has the field; without an object, for some variant.
bool has(const Schema& schema, const Entry& entry, const void* object) {
  return object == nullptr || is_of_variant(schema, entry, object);
}

const void* section_or_null(const Entry& entry, const void* object) {
  return object == nullptr ? nullptr : section_of(entry, object);
}

void collect(const Schema& schema, const void* object, std::string_view path,
             std::vector<std::string>& out) {
  for (const Entry& entry : schema.entries) {
    if (!has(schema, entry, object)) continue;
    out.push_back(join(path, entry.name));
    if (entry.section != nullptr)
      collect(*entry.section, section_or_null(entry, object), std::string(out.back()), out);
  }
}

std::string_view section_name(std::string_view path) {
  const size_t dot = path.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : path.substr(0, dot);
}

/// By last names; a key in a section of another name counts for less.
std::optional<size_t> path_nearness(std::string_view typed, std::string_view candidate) {
  if (nearness(typed, candidate) == 0) return 0; // model_num_layers
  const auto names = nearness(last_name(typed), last_name(candidate));
  if (!names) return std::nullopt;
  const std::string_view written = section_name(typed), section = section_name(candidate);
  const auto sections = written == section ? std::optional<size_t>(0) : nearness(written, section);
  return sections ? 2 * *names + *sections : 2 * *names + 3;
}

bool is_false(std::string_view value) {
  return value == "false" || value == "False";
}

/// Whether a setting stands for a flag of Megatron's that is true, and has no opposite:
/// "dtype=fp16".
bool needs_true(std::string_view setting) {
  return setting.find('=') != std::string_view::npos && !setting.ends_with("=true") &&
         !setting.ends_with("=false");
}

/// Megatron's setting with what was typed: "train.recompute" is "train.recompute=full" for a value
/// that the key takes, and "offload.optimizer=true" is false for a flag that is false.
std::string with_value(const Schema& root, std::string_view setting, std::string_view value) {
  if (value.empty() || setting.find(' ') != std::string_view::npos) return std::string(setting);
  for (const auto& [stated, opposite] : {std::pair("=true", "=false"), {"=false", "=true"}})
    if (is_false(value) && setting.ends_with(stated))
      return std::string(setting.substr(0, setting.rfind('='))) + opposite;
  const Found key = find(root, nullptr, setting);
  if (key.entry == nullptr || key.entry->type == nullptr ||
      value.find_first_of(" \n") != std::string_view::npos ||
      !parse_value(*key.entry->type, scalar_node(value)).value)
    return std::string(setting);
  return fmt::format("{}={}", setting, value);
}

} // namespace

void check_schema(const Schema& schema) {
  std::vector<std::string_view> names;
  for (const Entry& entry : schema.entries) {
    const bool lower = std::ranges::all_of(entry.name, [](unsigned char c) {
      return std::islower(c) != 0 || std::isdigit(c) != 0 || c == '_';
    });
    if (entry.name.empty() || !lower) {
      raise<Error>("config field '{}' is not a lower-case name", entry.name);
    }
    if (std::ranges::find(names, entry.name) != names.end()) {
      raise<Error>("config field '{}' is listed twice", entry.name);
    }
    names.push_back(entry.name);
    if (entry.traits.variants != ~uint32_t{0} && selecting_entry(schema) == nullptr) {
      raise<Error>("config field '{}' is only for some variants of a section that has none",
                   entry.name);
    }
    const Entry* const needed = needed_entry(schema, entry);
    if (!entry.traits.needs.empty() &&
        (entry.type == nullptr || needed == nullptr || needed->type == nullptr ||
         needed->type->kind != Kind::kEnum)) {
      raise<Error>("config field '{}' cannot need '{}': a value needs an enum of its section",
                   entry.name, entry.traits.needs);
    }
  }
}

void walk(const Schema& schema, const void* object, const Visitor& visit, std::string_view path) {
  for (const Entry& entry : schema.entries) {
    const std::string full = join(path, entry.name);
    if (entry.section != nullptr) {
      walk(*entry.section, section_of(entry, object), visit, full);
    } else {
      visit(full, entry, object);
    }
  }
}

Found find(const Schema& schema, void* object, std::string_view path) {
  const Schema* at = &schema;
  Found found;
  for (const std::string_view name : split(path, '.')) {
    if (found.entry != nullptr && object != nullptr) {
      object = static_cast<std::byte*>(object) + found.entry->offset;
    }
    if (at == nullptr) return {};
    const auto it = std::ranges::find(at->entries, name, &Entry::name);
    if (it == at->entries.end()) return {};
    found = {&*it, object};
    at = it->section;
  }
  return found;
}

std::string nearest_path(const Schema& schema, const void* object, std::string_view path) {
  std::vector<std::string> paths;
  collect(schema, object, {}, paths);
  const std::string* best = nullptr;
  size_t best_distance = 0;
  for (const std::string& candidate : paths) {
    const auto distance = path_nearness(path, candidate);
    if (distance && (best == nullptr || *distance < best_distance)) {
      best = &candidate;
      best_distance = *distance;
    }
  }
  return best == nullptr ? std::string() : *best;
}

void add_unknown(const Schema& root, const void* object, std::string_view path,
                 std::string_view value, std::string_view where, Violations& violations) {
  const std::string_view note = note_on_megatron(path);
  const std::string cause =
      fmt::format("{} is not a key{}{}", excerpt(path, 120), note.empty() ? "" : ": ", note);
  const std::string_view setting = setting_of_megatron(path);
  if ((!note.empty() && setting.empty()) || (is_false(value) && needs_true(setting)))
    return violations.add_at(where, path, cause, fmt::format("remove {}", path));
  // What another program calls by that name, of whatever variant: the next error names that.
  const auto known = [&root](std::string_view setting) {
    const std::string_view key = setting.substr(0, setting.find_first_of("= "));
    return key.starts_with("--") || (!key.empty() && find(root, nullptr, key).entry != nullptr);
  };
  std::string suggestion(setting_of_common_name(path));
  if (!known(suggestion)) suggestion = with_value(root, setting, value);
  const bool unnamed = path.ends_with('.'); // a key of a section, without its name
  if (!known(suggestion)) suggestion = unnamed ? "" : nearest_path(root, object, path);
  if (suggestion.empty()) {
    const Found parent = find(root, const_cast<void*>(object), section_name(path)); // read only
    const bool section = parent.entry != nullptr && parent.entry->section != nullptr;
    const Schema& schema = section ? *parent.entry->section : root;
    const void* const of = section ? section_or_null(*parent.entry, parent.object) : object;
    for (const Entry& entry : schema.entries)
      if (has(schema, entry, of))
        suggestion += fmt::format("{}{}", suggestion.empty() ? "one of " : ", ", entry.name);
  }
  violations.add_at(where, path, cause, std::move(suggestion));
}

} // namespace pentatron::config
