#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <fstream>

#include "pentatron/base/descriptors.h"
#include "pentatron/base/error.h"
#include "pentatron/base/text.h"
#include "pentatron/config/common_names.h"
#include "pentatron/config/config.h"
#include "pentatron/config/paths.h"
#include "pentatron/config/value.h"

namespace pentatron::config::detail {

namespace {

/// Walks a YAML tree beside a schema and assigns.
class Applier {
 public:
  Applier(const Schema& root, const void* whole, std::string_view origin, Violations& violations)
      : root_(root), whole_(whole), origin_(origin), violations_(violations) {}

  void section(const Schema& schema, void* object, const Node& node, const std::string& path) {
    if (node.type == Node::Type::kNull || node.type == Node::Type::kRefused) return;
    if (node.type != Node::Type::kMap) {
      const std::string what = path.empty() ? "the configuration" : path;
      violations_.add_at(
          location(origin_, node.line), path,
          fmt::format("{} is a section, and '{}' is not a set of keys", what,
                      node.type == Node::Type::kList ? "a list" : excerpt(node.text)),
          one_key(schema, node, path));
      return;
    }
    for (const Node::Member& member : node.members) {
      const std::string full = join(path, member.key);
      const std::string where = location(origin_, member.line);
      const Found found = find(schema, object, member.key);
      if (member.key.find('.') != std::string::npos &&
          config::find(root_, nullptr, full).entry != nullptr) {
        violations_.add_at(where, full,
                           fmt::format("{} is a key of a section, which YAML nests", full),
                           nested(member.key, node));
      } else if (found.entry == nullptr || member.key.find('.') != std::string::npos) {
        add_unknown(root_, whole_, full, member.value.text, where, violations_);
      } else if (found.entry->section != nullptr) {
        section(*found.entry->section, static_cast<std::byte*>(object) + found.entry->offset,
                member.value, full);
      } else {
        value(*found.entry, object, member.value, full, where);
      }
    }
  }

  /// All keys of a mapping that begin as "a.b" does: "a: {b: 3, c: 4}".
  static std::string nested(const std::string& key, const Node& node) {
    const auto section_of = [](const std::string& dotted) {
      return dotted.substr(0, std::min(dotted.rfind('.'), dotted.size()));
    };
    const std::string section = section_of(key);
    std::string keys, open, close;
    for (const Node::Member& member : node.members) {
      if (member.key.find('.') == std::string::npos || section_of(member.key) != section) continue;
      const bool plain =
          member.value.type == Node::Type::kScalar || member.value.type == Node::Type::kNull;
      keys +=
          fmt::format("{}{}: {}", keys.empty() ? "" : ", ", member.key.substr(section.size() + 1),
                      plain ? shown(member.value) : "...");
    }
    for (const std::string_view name : split(section, '.')) {
      open += fmt::format("{}: {{", name);
      close += '}';
    }
    return open + keys + close;
  }

  /// The key that a text given for a whole section is for: dataset=FILE is dataset.path=FILE.
  static std::string one_key(const Schema& schema, const Node& node, const std::string& path) {
    if (schema.entries.empty()) return {};
    const Entry& first = schema.entries.front();
    const std::string text = excerpt(node.text);
    if (node.type != Node::Type::kScalar) return join(path, first.name) + "=...";
    if (first.type != nullptr && first.type->kind == Kind::kEnum &&
        parse_value(*first.type, node).value)
      return fmt::format("{}={}", join(path, first.name), text);
    const bool has_path =
        std::ranges::find(schema.entries, "path", &Entry::name) != schema.entries.end();
    return has_path ? fmt::format("{}={}", join(path, "path"), text)
                    : join(path, first.name) + "=...";
  }

  void value(const Entry& entry, void* object, const Node& node, const std::string& path,
             const std::string& where) {
    if (node.type == Node::Type::kRefused) return;
    Node given = node;
    if (entry.traits.or_one && node.type == Node::Type::kScalar) {
      given.type = Node::Type::kList;
      given.items = {node};
    }
    Parsed parsed = parse_value(*entry.type, given);
    if (parsed.value) {
      entry.type->write(static_cast<std::byte*>(object) + entry.offset, *parsed.value);
      violations_.assigned(path, where);
      return;
    }
    const TypeInfo& type = entry.type->kind == Kind::kOptional ? *entry.type->element : *entry.type;
    if (type.kind == Kind::kInt && !node.quoted && !parsed.suggestion.empty()) {
      const double nearest = std::strtod(parsed.suggestion.c_str(), nullptr);
      const bool fits = nearest >= entry.traits.min && nearest <= entry.traits.max;
      if (parsed.out_of_range || !fits)
        parsed.cause = "is out of range: it must be " + range_text(type, entry.traits);
      if (!fits) parsed.suggestion.clear();
    }
    std::string suggestion(settings_of_common_value(path, node.text));
    if (suggestion.empty() && !parsed.suggestion.empty())
      suggestion = fmt::format("{}={}", path, parsed.suggestion);
    if (suggestion.empty() && shown(node) == "null") suggestion = "remove " + path;
    if (suggestion.empty()) // what it was before
      suggestion = fmt::format("{}={}", path, format_value(*entry.type, read_entry(entry, object)));
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
  const void* whole_; ///< the struct of `root_`
  std::string origin_;
  Violations& violations_;
};

/// Applies files with those that they include. An included file comes first, so that the file that
/// includes it overrides it.
class FileApplier {
 public:
  FileApplier(const Schema& schema, void* object, Violations& violations)
      : schema_(schema), object_(object), violations_(violations) {}

  /// `where` is the place of the include; empty: the user named the file.
  void apply(const std::filesystem::path& file, const std::string& where) {
    if (files_ > kMaxFiles || !enter(file, where)) return; // too many: told once
    const std::optional<std::string> text = read(file, where);
    std::optional<Node> root;
    if (text) root = parse_yaml(*text, file.string(), /*lines=*/true, violations_);
    if (root) {
      if (root->type == Node::Type::kMap) apply_includes(*root, file);
      Applier(schema_, object_, file.string(), violations_).section(schema_, object_, *root, "");
    }
    open_.pop_back();
  }

 private:
  static constexpr size_t kMaxDepth = 8, kMaxFiles = 64;

  std::optional<std::string> read(const std::filesystem::path& file, const std::string& where) {
    std::error_code error;
    const bool regular = std::filesystem::is_regular_file(file, error);
    std::ifstream stream;
    if (regular) stream.open(file, std::ios::binary);
    if (!stream) require_descriptors(errno, file.native());
    std::string text(size_t{1} << 20, '\0'); // one byte above the limit is enough to be refused
    text += '\0';
    if (regular && stream) {
      stream.read(text.data(), static_cast<std::streamsize>(text.size()));
      text.resize(static_cast<size_t>(stream.gcount()));
      if (!stream.bad()) return text;
    }
    const bool exists = std::filesystem::exists(file, error);
    violations_.add_at(where, "",
                       fmt::format("the {} file {} {}",
                                   where.empty() ? "configuration" : "included", file.string(),
                                   regular  ? "cannot be read"
                                   : exists ? "is not a file"
                                            : "does not exist"),
                       where.empty() ? "the path of a YAML file"
                                     : "a path relative to the file that includes it");
    return std::nullopt;
  }

  /// Refuses cycles and more files than anybody writes.
  bool enter(const std::filesystem::path& file, const std::string& where) {
    std::error_code error;
    const std::filesystem::path real = std::filesystem::weakly_canonical(file, error);
    for (size_t i = 0; i < open_.size(); ++i) {
      if (open_[i].real != real) continue;
      std::string chain;
      for (size_t k = i; k < open_.size(); ++k) chain += open_[k].name + " -> ";
      violations_.add_at(
          where, "", fmt::format("{} includes itself: {}{}", file.string(), chain, file.string()),
          "remove this include");
      return false;
    }
    if (open_.size() > kMaxDepth || ++files_ > kMaxFiles) {
      violations_.add_at(where, "",
                         open_.size() > kMaxDepth
                             ? fmt::format("files are included more than {} levels deep", kMaxDepth)
                             : fmt::format("more than {} files are included", kMaxFiles),
                         "fewer includes");
      return false;
    }
    open_.push_back({real, file.string()});
    return true;
  }

  /// Takes the key `include` out of the file's map and applies what it names.
  void apply_includes(Node& root, const std::filesystem::path& file) {
    const auto found = std::ranges::find(root.members, kIncludeKey, &Node::Member::key);
    if (found == root.members.end()) return;
    const Node::Member include = std::move(*found);
    root.members.erase(found);
    const std::string where = location(file.string(), include.line);
    std::vector<Node> names = include.value.items;
    if (include.value.type == Node::Type::kScalar) names = {include.value};
    bool valid = !names.empty() || include.value.type == Node::Type::kList;
    for (const Node& name : names) valid &= name.type == Node::Type::kScalar && !name.text.empty();
    if (!valid) {
      violations_.add_at(where, "", "include is not a list of files", "include: [base.yaml]");
      return;
    }
    for (const Node& name : names) {
      const std::filesystem::path path = file.parent_path() / name.text;
      apply(path.lexically_normal(), where);
    }
  }

  struct Open {
    std::filesystem::path real;
    std::string name;
  };
  const Schema& schema_;
  void* object_;
  Violations& violations_;
  std::vector<Open> open_;
  size_t files_ = 0;
};

} // namespace

void apply_yaml(const Schema& schema, void* object, std::string_view text, std::string_view origin,
                Violations& violations) {
  const std::optional<Node> root = parse_yaml(text, origin, /*lines=*/true, violations);
  if (root) Applier(schema, object, origin, violations).section(schema, object, *root, "");
}

void apply_file(const Schema& schema, void* object, const std::filesystem::path& file,
                Violations& violations) {
  FileApplier(schema, object, violations).apply(file, "");
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
  if (path.empty()) {
    violations.add_at(where, path, "no key before =", "section.key=value");
    return;
  }
  const std::string_view text = trim(assignment.substr(equals + 1));
  if (found.entry == nullptr) {
    add_unknown(schema, object, path, text, where, violations);
    return;
  }
  Applier applier(schema, object, where, violations);
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
