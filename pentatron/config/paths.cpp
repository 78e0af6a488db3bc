#include "pentatron/config/paths.h"

#include <algorithm>
#include <cctype>

#include "pentatron/base/error.h"
#include "pentatron/base/nearest.h"
#include "pentatron/base/text.h"
#include "pentatron/config/value.h"

namespace pentatron::config {

namespace {

std::string_view last_name(std::string_view path) {
  const size_t dot = path.rfind('.');
  return dot == std::string_view::npos ? path : path.substr(dot + 1);
}

void collect(const Schema& schema, std::string_view path, std::vector<std::string>& out) {
  for (const Entry& entry : schema.entries) {
    out.push_back(join(path, entry.name));
    if (entry.section != nullptr) collect(*entry.section, std::string(out.back()), out);
  }
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

std::string nearest_path(const Schema& schema, std::string_view path) {
  std::vector<std::string> paths;
  collect(schema, {}, paths);
  const std::string* best = nullptr;
  size_t best_distance = 0;
  for (const std::string& candidate : paths) {
    const size_t in_place = edit_distance(path, candidate);
    const size_t moved = 2 * edit_distance(last_name(path), last_name(candidate)) + 1;
    const size_t distance = std::min(in_place, moved);
    if (best == nullptr || distance < best_distance) {
      best = &candidate;
      best_distance = distance;
    }
  }
  if (best == nullptr) return {};
  const size_t limit = std::max<size_t>(3, last_name(path).size() / 2 + 1);
  return best_distance <= limit ? *best : std::string();
}

void add_unknown(const Schema& root, std::string_view path, std::string_view where,
                 Violations& violations) {
  std::string suggestion = nearest_path(root, path);
  if (suggestion.empty()) {
    const std::string_view section = path.substr(0, path.size() - last_name(path).size());
    const Found parent =
        section.empty() ? Found{} : find(root, nullptr, section.substr(0, section.size() - 1));
    const Schema* schema = section.empty()           ? &root
                           : parent.entry != nullptr ? parent.entry->section
                                                     : nullptr;
    if (schema != nullptr) {
      for (const Entry& entry : schema->entries) {
        suggestion += fmt::format("{}{}", suggestion.empty() ? "one of " : ", ", entry.name);
      }
    }
  }
  violations.add_at(where, path, fmt::format("{} is not a key", excerpt(path, 120)),
                    std::move(suggestion));
}

} // namespace pentatron::config
