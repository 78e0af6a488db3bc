// The one file that includes yaml-cpp. It reads events and not yaml-cpp's nodes, because nodes hide
// what has to be refused: duplicate keys, anchors and tags.
#include <algorithm>
#include <map>
#include <sstream>

#include <yaml-cpp/anchor.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/mark.h>
#include <yaml-cpp/parser.h>

#include "pentatron/base/error.h"
#include "pentatron/base/text.h"
#include "pentatron/base/utf8.h"
#include "pentatron/config/node.h"
#include "pentatron/config/quoted_scalar.h"
#include "pentatron/config/violations.h"

namespace pentatron::config {

namespace {

constexpr size_t kMaxBytes = size_t{1} << 20;
constexpr int kMaxDepth = 16;
constexpr size_t kMaxExpandedBytes = size_t{16} << 20, kNodeBytes = 64;

struct TooDeep {
  int line;
};
struct TooLarge {
  int line;
};

size_t bytes_of(const Node& node) {
  size_t bytes = kNodeBytes + node.text.size();
  for (const Node& item : node.items) bytes += bytes_of(item);
  for (const Node::Member& member : node.members)
    bytes += member.key.size() + bytes_of(member.value);
  return bytes;
}

int depth_of(const Node& node) {
  int below = 0;
  for (const Node& item : node.items) below = std::max(below, depth_of(item));
  for (const Node::Member& member : node.members) below = std::max(below, depth_of(member.value));
  const bool level = node.type == Node::Type::kList || node.type == Node::Type::kMap;
  return below + (level ? 1 : 0);
}

/// The members of all, each key where it was first; later values replace earlier ones.
std::vector<Node::Member> combined(std::vector<Node::Member> merged,
                                   std::vector<Node::Member> own) {
  std::map<std::string, size_t> places;
  std::vector<Node::Member> all;
  for (std::vector<Node::Member>* members : {&merged, &own})
    for (Node::Member& member : *members) {
      const auto [place, is_new] = places.emplace(member.key, all.size());
      if (is_new)
        all.push_back(std::move(member));
      else
        all[place->second] = std::move(member);
    }
  return all;
}

class TreeBuilder : public YAML::EventHandler {
 public:
  TreeBuilder(std::string_view text, std::string_view where, bool lines, Violations& violations,
              const YamlKind& kind)
      : text_(text), where_(where), lines_(lines), violations_(violations), kind_(kind) {}

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    Node node = start(mark, "?", anchor);
    if (node.type != Node::Type::kRefused) node.type = Node::Type::kNull;
    add(std::move(node), anchor);
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    if (kind_.references) return repeat(mark, anchor);
    refuse(mark, fmt::format("an alias (*name) is not allowed in {}", kind_.name),
           "write the value again");
    Node node;
    node.type = Node::Type::kRefused;
    node.line = line(mark);
    add(std::move(node));
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    Node node = start(mark, tag, anchor);
    if (node.type != Node::Type::kRefused) node.type = Node::Type::kScalar;
    node.quoted = tag == "!";
    node.text = value;
    if (node.quoted)
      if (std::optional<std::string> folded = folded_scalar(after(mark)))
        node.text = std::move(*folded);
    add(std::move(node), anchor);
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    open(mark, tag, anchor, Node::Type::kList);
  }
  void OnSequenceEnd() override { close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    open(mark, tag, anchor, Node::Type::kMap);
  }
  void OnMapEnd() override { close(); }

  Node take() { return std::move(root_); }
  int line(const YAML::Mark& mark) const { return lines_ ? mark.line + 1 : 0; }

 private:
  struct Level {
    Node node;
    bool refused = false;
    YAML::anchor_t anchor = YAML::NullAnchor;
    std::optional<Node> key;          // of a map, waiting for its value
    std::vector<Node::Member> merged; // what the merge keys of a map give it
  };

  void refuse(const YAML::Mark& mark, std::string cause, std::string suggestion) {
    violations_.add_at(location(where_, line(mark)), "", std::move(cause), std::move(suggestion));
  }

  /// The text from a place on. Lines are yaml-cpp's, which end at '\n', and columns are bytes.
  std::string_view after(const YAML::Mark& mark) {
    for (; line_ < mark.line; ++line_) {
      const size_t end = text_.find('\n', line_begin_);
      if (end == std::string_view::npos) return {};
      line_begin_ = end + 1;
    }
    const size_t begin = line_begin_ + static_cast<size_t>(mark.column);
    return line_ == mark.line && begin < text_.size() ? text_.substr(begin) : std::string_view();
  }

  Node start(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor) {
    Node node;
    node.line = line(mark);
    if (anchor != YAML::NullAnchor && !kind_.references) {
      refuse(mark, fmt::format("an anchor (&name) is not allowed in {}", kind_.name), "remove it");
      node.type = Node::Type::kRefused;
    }
    if (!tag.empty() && tag != "?" && tag != "!") {
      refuse(mark,
             fmt::format("the tag '{}' is not allowed in {}; {}", tag, kind_.name, kind_.no_tags),
             std::string(kind_.instead_of_tag));
      node.type = Node::Type::kRefused;
    }
    return node;
  }

  void open(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
            Node::Type type) {
    if (static_cast<int>(levels_.size()) >= kMaxDepth) throw TooDeep{line(mark)};
    Level level;
    level.node = start(mark, tag, anchor);
    level.refused = level.node.type == Node::Type::kRefused;
    level.node.type = type;
    level.anchor = anchor;
    levels_.push_back(std::move(level));
  }

  void close() {
    Level level = std::move(levels_.back());
    levels_.pop_back();
    if (level.refused) level.node.type = Node::Type::kRefused;
    if (!level.merged.empty())
      level.node.members = combined(std::move(level.merged), std::move(level.node.members));
    add(std::move(level.node), level.anchor);
  }

  /// The value of an anchor once more.
  void repeat(const YAML::Mark& mark, YAML::anchor_t anchor) {
    const auto found = anchors_.find(anchor);
    if (found == anchors_.end()) { // its section is still open
      refuse(mark, "an alias (*name) stands in the section that it names",
             "an alias of another section");
      Node node;
      node.type = Node::Type::kRefused;
      return add(std::move(node));
    }
    expanded_bytes_ += bytes_of(found->second);
    if (expanded_bytes_ > kMaxExpandedBytes) throw TooLarge{line(mark)};
    if (static_cast<int>(levels_.size()) + depth_of(found->second) > kMaxDepth)
      throw TooDeep{line(mark)};
    Node node = found->second;
    node.line = line(mark);
    add(std::move(node));
  }

  void add(Node node, YAML::anchor_t anchor = YAML::NullAnchor) {
    if (anchor != YAML::NullAnchor && kind_.references) anchors_[anchor] = node;
    if (levels_.empty()) {
      root_ = std::move(node);
      return;
    }
    Level& level = levels_.back();
    if (level.node.type == Node::Type::kList) {
      level.node.items.push_back(std::move(node));
    } else if (!level.key) {
      level.key = std::move(node);
    } else {
      add_member(level, std::move(node));
    }
  }

  void add_member(Level& level, Node value) {
    const Node key = std::move(*level.key);
    level.key.reset();
    if (key.type == Node::Type::kRefused) return;
    const std::string at = location(where_, key.line);
    if (key.type != Node::Type::kScalar) {
      violations_.add_at(at, "", "a key must be a name");
      return;
    }
    if (kind_.references && key.text == "<<" && !key.quoted) return merge(level, value, at);
    for (Node::Member& member : level.node.members) {
      if (member.key != key.text) continue;
      if (kind_.repeated != nullptr) {
        kind_.repeated->push_back({key.text, key.line, member.line});
        member.value = std::move(value);
        return;
      }
      const std::string first = lines_ ? fmt::format(", first on line {}", member.line) : "";
      violations_.add_at(
          at, key.text, fmt::format("the key '{}' appears twice in its section{}", key.text, first),
          "remove one of them");
      return;
    }
    level.node.members.push_back({key.text, key.line, std::move(value)});
  }

  /// The first of several sections has precedence, and the keys of the map itself before all.
  void merge(Level& level, const Node& value, const std::string& at) {
    std::vector<const Node*> sections;
    if (value.type == Node::Type::kMap) sections.push_back(&value);
    for (const Node& item : value.items) sections.insert(sections.begin(), &item);
    const bool maps = std::ranges::all_of(
        sections, [](const Node* section) { return section->type == Node::Type::kMap; });
    if (value.type == Node::Type::kRefused) return;
    if (!maps || (sections.empty() && value.type != Node::Type::kList)) {
      violations_.add_at(at, "<<", "the merge key << takes a section or a list of sections",
                         "<<: *name, with &name at an earlier section");
      return;
    }
    for (const Node* section : sections)
      level.merged.insert(level.merged.end(), section->members.begin(), section->members.end());
  }

  std::string_view text_;
  int line_ = 0; ///< that begins at line_begin_; events come in order
  size_t line_begin_ = 0;
  std::string where_;
  bool lines_;
  Violations& violations_;
  YamlKind kind_;
  std::vector<Level> levels_;
  std::map<YAML::anchor_t, Node> anchors_; ///< the last value of each
  size_t expanded_bytes_ = 0;              ///< of all aliases
  Node root_;
};

} // namespace

std::string location(std::string_view origin, int line) {
  return line > 0 ? fmt::format("{}:{}", origin, line) : std::string(origin);
}

Node scalar_node(std::string_view text) {
  Node node;
  node.type = Node::Type::kScalar;
  node.text = text;
  return node;
}

std::optional<Node> parse_yaml(std::string_view text, std::string_view where, bool lines,
                               Violations& violations, const YamlKind& kind) {
  if (text.size() > kMaxBytes) {
    violations.add_at(
        where, "",
        fmt::format("the text has {} bytes, more than the limit of {}", text.size(), kMaxBytes));
    return std::nullopt;
  }
  if (!is_utf8(text)) {
    violations.add_at(where, "", "the text is not valid UTF-8", "a YAML file in UTF-8");
    return std::nullopt;
  }
  // yaml-cpp takes byte 4 for the end of the text: a control character could hide the rest.
  const auto control = std::ranges::find_if(text, [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return (byte < 0x20 && c != '\n' && c != '\r' && c != '\t') || byte == 0x7F;
  });
  if (control != text.end()) {
    const auto line = static_cast<int>(std::count(text.begin(), control, '\n')) + 1;
    violations.add_at(location(where, lines ? line : 0), "",
                      fmt::format("the text contains the control character 0x{:02x}",
                                  static_cast<unsigned char>(*control)),
                      "an escape in double quotes, such as \"\\x07\"");
    return std::nullopt;
  }
  const std::string_view seen = // by yaml-cpp
      text.starts_with(kByteOrderMark) ? text.substr(kByteOrderMark.size()) : text;
  TreeBuilder builder(seen, where, lines, violations, kind);
  try {
    std::istringstream stream{std::string(text)};
    YAML::Parser parser(stream);
    if (!parser.HandleNextDocument(builder)) return Node{};
    Node root = builder.take();
    if (parser.HandleNextDocument(builder)) {
      violations.add_at(where, "", "the text contains more than one YAML document", "one document");
      return std::nullopt;
    }
    return root;
  } catch (const TooDeep& e) {
    violations.add_at(location(where, e.line), "",
                      fmt::format("the text is nested more than {} levels deep", kMaxDepth));
  } catch (const TooLarge& e) {
    violations.add_at(
        location(where, e.line), "",
        fmt::format("the aliases (*name) expand to more than {} MiB", kMaxExpandedBytes >> 20),
        "fewer aliases of sections that contain aliases");
  } catch (const YAML::Exception& e) {
    violations.add_at(location(where, builder.line(e.mark)), "",
                      fmt::format("YAML syntax: {}", e.msg),
                      "lines such as `key: value` below `section:`, indented with spaces");
  } catch (const std::exception& e) {
    violations.add_at(where, "", fmt::format("YAML syntax: {}", e.what()));
  }
  return std::nullopt;
}

} // namespace pentatron::config
