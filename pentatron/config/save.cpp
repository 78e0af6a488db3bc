#include <algorithm>

#include "pentatron/base/error.h"
#include "pentatron/config/config.h"
#include "pentatron/config/paths.h"
#include "pentatron/config/value.h"

namespace pentatron::config {

namespace {

void write_section(const Schema& schema, const void* object, int depth, std::string& out) {
  for (const Entry& entry : schema.entries) {
    if (!is_present(schema, entry, object)) continue;
    out.append(static_cast<size_t>(2 * depth), ' ');
    out += entry.name;
    out += ':';
    if (entry.section == nullptr) {
      out += ' ' + format_value(*entry.type, read_entry(entry, object)) + '\n';
    } else if (entry.section->entries.empty()) {
      out += " {}\n";
    } else {
      out += '\n';
      write_section(*entry.section, section_of(entry, object), depth + 1, out);
    }
  }
}

OnResume meaning_of(const Entry& entry, OnResume of_section) {
  const OnResume own = entry.traits.on_resume;
  return own == OnResume::kInherited ? of_section : own;
}

void diff_section(const Schema& schema, const void* before, const void* after,
                  const std::string& prefix, OnResume of_section, std::vector<Difference>& out) {
  for (const Entry& entry : schema.entries) {
    if (!is_present(schema, entry, before) && !is_present(schema, entry, after)) continue;
    const std::string path = join(prefix, entry.name);
    const OnResume meaning = meaning_of(entry, of_section);
    if (entry.section != nullptr) {
      diff_section(*entry.section, section_of(entry, before), section_of(entry, after), path,
                   meaning, out);
      continue;
    }
    std::string a = format_value(*entry.type, read_entry(entry, before)),
                b = format_value(*entry.type, read_entry(entry, after));
    if (a != b) out.push_back({path, std::move(a), std::move(b), meaning, entry.traits.of_task});
  }
}

/// Every path with its value, but for fields of these meanings.
void flatten_section(const Schema& schema, const void* object, const std::string& prefix,
                     OnResume of_section, const std::set<OnResume>& without,
                     std::vector<std::pair<std::string, std::string>>& out) {
  for (const Entry& entry : schema.entries) {
    const std::string path = join(prefix, entry.name);
    const OnResume meaning = meaning_of(entry, of_section);
    if (entry.section != nullptr)
      flatten_section(*entry.section, section_of(entry, object), path, meaning, without, out);
    else if (!without.contains(meaning))
      out.emplace_back(path, format_value(*entry.type, read_entry(entry, object)));
  }
}

} // namespace

std::string to_text(const std::vector<Difference>& differences) {
  std::string text;
  for (const Difference& d : differences) {
    text += fmt::format("{}: {} -> {}\n", d.path, d.before, d.after);
  }
  return text;
}

namespace detail {

std::string to_yaml(const Schema& schema, const void* object) {
  std::string out;
  write_section(schema, object, 0, out);
  return out;
}

std::vector<Difference> diff(const Schema& schema, const void* before, const void* after) {
  std::vector<Difference> out;
  diff_section(schema, before, after, "", OnResume::kTold, out);
  return out;
}

std::string get(const Schema& schema, const void* object, std::string_view path) {
  const Found found = find(schema, const_cast<void*>(object), path); // read only below
  if (found.entry == nullptr || found.entry->type == nullptr) {
    Violations violations;
    add_unknown(schema, object, path, /*value=*/"", /*where=*/"", violations);
    violations.throw_if_any();
  }
  return format_value(*found.entry->type, read_entry(*found.entry, found.object));
}

std::string hash(const Schema& schema, const void* object, const std::set<OnResume>& without) {
  std::vector<std::pair<std::string, std::string>> values;
  flatten_section(schema, object, "", OnResume::kTold, without, values);
  std::ranges::sort(values);
  uint64_t hash = 0xCBF29CE484222325u; // FNV-1a
  const auto add = [&](std::string_view text) {
    for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
  };
  for (const auto& [path, value] : values) {
    add(path);
    add("=");
    add(value);
    add("\n");
  }
  return fmt::format("{:016x}", hash);
}

} // namespace detail

} // namespace pentatron::config
