/// A YAML text as a plain tree, before types are known. For config, and for files that are read as
/// cautiously.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace pentatron::config {

class Violations;

struct Node {
  enum class Type { kNull, kScalar, kList, kMap, kRefused };
  struct Member;

  Type type = Type::kNull;
  int line = 0; ///< from 1; 0 in an override
  std::string text;
  bool quoted = false; ///< the scalar stood in quotes or in a block
  std::vector<Node> items;
  std::vector<Member> members; ///< unique keys, in order of the text
};

struct Node::Member {
  std::string key;
  int line = 0;
  Node value;
};

/// A key that a section has twice.
struct RepeatedKey {
  std::string key;
  int line = 0, first_line = 0;
};

/// What a text is, for messages, why it may have no tags, and what else it may have.
struct YamlKind {
  std::string_view name = "a configuration";
  std::string_view no_tags = "the key determines the type";
  std::string_view instead_of_tag = "remove it";
  /// Anchors, aliases and the merge key (<<), as in YAML 1.1. What they expand to is bounded.
  bool references = false;
  /// If not null, the last value of a repeated key counts, and the key is noted here.
  std::vector<RepeatedKey>* repeated = nullptr;
};

/// Reads one YAML document. What configurations do not use (see config.h) is recorded in
/// `violations`; a part that was refused has the type kRefused, and a text that cannot be read at
/// all gives nothing. `where` names the text, and line numbers follow it if `lines`.
std::optional<Node> parse_yaml(std::string_view text, std::string_view where, bool lines,
                               Violations& violations, const YamlKind& kind = {});

/// A scalar that stood in an override.
Node scalar_node(std::string_view text);

/// "run.yaml:12", or `origin` itself for line 0.
std::string location(std::string_view origin, int line);

} // namespace pentatron::config
