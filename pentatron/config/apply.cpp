#include <fstream>

#include "pentatron/base/error.h"
#include "pentatron/base/text.h"
#include "pentatron/config/config.h"
#include "pentatron/config/paths.h"
#include "pentatron/config/value.h"

namespace pentatron::config::detail {

namespace {

/// Walks a YAML tree beside a schema and assigns.
class Applier {
 public:
  Applier(const Schema& root, std::string_view origin, Violations& violations)
      : root_(root), origin_(origin), violations_(violations) {}

  void section(const Schema& schema, void* object, const Node& node, const std::string& path) {
    if (node.type == Node::Type::kNull || node.type == Node::Type::kRefused) return;
    if (node.type != Node::Type::kMap) {
      const std::string what = path.empty() ? "the configuration" : path;
      violations_.add_at(
          location(origin_, node.line), path,
          fmt::format("{} is a section, and '{}' is not a set of keys", what,
                      node.type == Node::Type::kList ? "a list" : excerpt(node.text)),
          schema.entries.empty() ? "" : join(path, schema.entries.front().name) + "=...");
      return;
    }
    for (const Node::Member& member : node.members) {
      const std::string full = join(path, member.key);
      const std::string where = location(origin_, member.line);
      const Found found = find(schema, object, member.key);
      if (found.entry == nullptr || member.key.find('.') != std::string::npos) {
        add_unknown(root_, full, where, violations_);
      } else if (found.entry->section != nullptr) {
        section(*found.entry->section, static_cast<std::byte*>(object) + found.entry->offset,
                member.value, full);
      } else {
        value(*found.entry, object, member.value, full, where);
      }
    }
  }

  void value(const Entry& entry, void* object, const Node& node, const std::string& path,
             const std::string& where) {
    if (node.type == Node::Type::kRefused) return;
    Parsed parsed = parse_value(*entry.type, node);
    if (parsed.value) {
      entry.type->write(static_cast<std::byte*>(object) + entry.offset, *parsed.value);
      violations_.assigned(path, where);
      return;
    }
    std::string suggestion;
    if (!parsed.suggestion.empty()) suggestion = fmt::format("{}={}", path, parsed.suggestion);
    violations_.add_at(where, path, fmt::format("{}={} {}", path, shown(node), parsed.cause),
                       std::move(suggestion));
  }

 private:
  static std::string shown(const Node& node) {
    switch (node.type) {
    case Node::Type::kList:
      return "[...]";
    case Node::Type::kMap:
      return "{...}";
    case Node::Type::kNull:
      return "null";
    default:
      return node.quoted ? fmt::format("\"{}\"", excerpt(node.text)) : excerpt(node.text);
    }
  }

  const Schema& root_;
  std::string origin_;
  Violations& violations_;
};

} // namespace

void apply_yaml(const Schema& schema, void* object, std::string_view text, std::string_view origin,
                Violations& violations) {
  const std::optional<Node> root = parse_yaml(text, origin, /*lines=*/true, violations);
  if (root) Applier(schema, origin, violations).section(schema, object, *root, "");
}

void apply_file(const Schema& schema, void* object, const std::filesystem::path& file,
                Violations& violations) {
  std::error_code error;
  const bool regular = std::filesystem::is_regular_file(file, error);
  std::ifstream stream;
  if (regular) stream.open(file, std::ios::binary);
  if (!regular || !stream) {
    violations.add_at("", "",
                      fmt::format("the configuration file {} {}", file.string(),
                                  regular                                ? "cannot be read"
                                  : std::filesystem::exists(file, error) ? "is not a file"
                                                                         : "does not exist"));
    return;
  }
  std::string text(size_t{1} << 20, '\0'); // one byte above the limit is enough to be refused
  text += '\0';
  stream.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(stream.gcount()));
  if (stream.bad()) {
    violations.add_at("", "",
                      fmt::format("the configuration file {} cannot be read", file.string()));
    return;
  }
  apply_yaml(schema, object, text, file.string(), violations);
}

void apply_override(const Schema& schema, void* object, std::string_view assignment,
                    Violations& violations) {
  const std::string where = fmt::format("override '{}'", excerpt(assignment, 200));
  const size_t equals = assignment.find('=');
  const std::string path(trim(assignment.substr(0, equals)));
  const Found found = find(schema, object, path);
  if (equals == std::string_view::npos) {
    violations.add_at(where, path, fmt::format("'{}' has no value", excerpt(assignment, 200)),
                      found.entry != nullptr ? path + "=VALUE" : "section.key=value");
    return;
  }
  if (found.entry == nullptr) {
    add_unknown(schema, path, where, violations);
    return;
  }
  const std::string_view text = trim(assignment.substr(equals + 1));
  Applier applier(schema, where, violations);
  std::optional<Node> node;
  if (found.entry->section != nullptr) {
    if (text.starts_with('{')) {
      node = parse_yaml(text, where, /*lines=*/false, violations);
    } else {
      node = scalar_node(text);
    }
    if (node) {
      applier.section(*found.entry->section,
                      static_cast<std::byte*>(found.object) + found.entry->offset, *node, path);
    }
    return;
  }
  node = override_node(*found.entry->type, text, where, violations);
  if (node) applier.value(*found.entry, found.object, *node, path, where);
}

} // namespace pentatron::config::detail
