// The one file that includes yaml-cpp. It reads events and not yaml-cpp's nodes, because nodes hide
// what has to be refused: duplicate keys, anchors and tags.
#include <algorithm>
#include <sstream>

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

struct TooDeep {
  int line;
};

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
    add(std::move(node));
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
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
    add(std::move(node));
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
    std::optional<Node> key; // of a map, waiting for its value
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
    if (anchor != 0) {
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
    levels_.push_back(std::move(level));
  }

  void close() {
    Level level = std::move(levels_.back());
    levels_.pop_back();
    if (level.refused) level.node.type = Node::Type::kRefused;
    add(std::move(level.node));
  }

  void add(Node node) {
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
    for (const Node::Member& member : level.node.members) {
      if (member.key != key.text) continue;
      const std::string first = lines_ ? fmt::format(", first on line {}", member.line) : "";
      violations_.add_at(
          at, key.text, fmt::format("the key '{}' appears twice in its section{}", key.text, first),
          "remove one of them");
      return;
    }
    level.node.members.push_back({key.text, key.line, std::move(value)});
  }

  std::string_view text_;
  int line_ = 0; ///< that begins at line_begin_; events come in order
  size_t line_begin_ = 0;
  std::string where_;
  bool lines_;
  Violations& violations_;
  YamlKind kind_;
  std::vector<Level> levels_;
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
