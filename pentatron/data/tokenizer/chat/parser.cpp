#include "pentatron/data/tokenizer/chat/parser.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <set>
#include <utility>

#include "pentatron/base/error.h"
#include "pentatron/base/text.h"
#include "pentatron/data/tokenizer/chat/lexer.h"

namespace pentatron::data::tokenizer::chat {

namespace {

constexpr int kMaxNesting = 50;
constexpr int kMaxChain = 200; // of operators without brackets: each makes the tree deeper
constexpr size_t kMaxBytes = size_t{1} << 20;

class Parser {
 public:
  Parser(std::string_view source, const TemplateRules& rules)
      : tokens_(read_tokens(source, rules)) {}

  NodePtr run() {
    NodePtr all = block({});
    if (now().kind != TokenKind::kEnd) fail("does not end here");
    return all;
  }

 private:
  /// Counts how deep the parser is in itself.
  struct Depth {
    explicit Depth(Parser& p) : parser(p) {
      if (++parser.depth_ > kMaxNesting) parser.fail("is nested too deep");
    }
    ~Depth() { --parser.depth_; }
    Parser& parser;
  };

  [[noreturn]] void fail(std::string_view what) const {
    raise<DataError>("line {} of the chat template {} (at '{}')", now().line, what, now().text);
  }
  const Token& now() const { return tokens_[at_]; }
  const Token& peek() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  Token take() { return tokens_[at_ + 1 < tokens_.size() ? at_++ : at_]; }
  bool is_operator(std::string_view text) const {
    return now().kind == TokenKind::kOperator && now().text == text;
  }
  bool is_name(std::string_view text) const {
    return now().kind == TokenKind::kName && now().text == text;
  }
  bool accept(std::string_view text) {
    if (!is_operator(text) && !is_name(text)) return false;
    ++at_;
    return true;
  }
  void expect(std::string_view text) {
    if (!accept(text)) fail(fmt::format("has no '{}' where one is needed", text));
  }
  void expect(TokenKind kind) {
    if (now().kind != kind) fail("has a block with unexpected content");
    ++at_;
  }
  std::string name() {
    if (now().kind != TokenKind::kName) fail("has no name where one is needed");
    return take().text;
  }
  NodePtr make(NodeKind kind, std::string text = {}) const {
    return std::make_unique<Node>(Node{.kind = kind, .line = now().line, .text = std::move(text)});
  }
  template <class... C> NodePtr make_of(NodeKind kind, std::string text, C... children) const {
    NodePtr node = make(kind, std::move(text));
    (node->children.push_back(std::move(children)), ...);
    return node;
  }

  void check_chain(int& count) const {
    if (++count > kMaxChain) fail("has an expression that is too long");
  }

  /// Statements up to a block that begins with one of `ends`, which is not taken.
  NodePtr block(const std::vector<std::string_view>& ends) {
    const Depth depth(*this);
    NodePtr all = make(NodeKind::kBlock);
    for (;;) {
      if (now().kind == TokenKind::kText) {
        all->children.push_back(make(NodeKind::kText, now().text));
        ++at_;
      } else if (now().kind == TokenKind::kBeginPrint) {
        ++at_;
        all->children.push_back(make_of(NodeKind::kPrint, "", tuple()));
        expect(TokenKind::kEndPrint);
      } else if (now().kind == TokenKind::kBeginBlock) {
        for (const std::string_view end : ends) {
          if (peek().kind == TokenKind::kName && peek().text == end) return all;
        }
        ++at_;
        all->children.push_back(statement());
      } else {
        return all;
      }
    }
  }
  /// Statements whose text becomes a value: loops around them are not theirs.
  NodePtr captured(std::string_view end) {
    const int loops = std::exchange(loops_, 0);
    NodePtr body = block({end});
    loops_ = loops;
    return body;
  }
  /// {% name %} that ends a block.
  void end(std::string_view word) {
    expect(TokenKind::kBeginBlock);
    expect(word);
    expect(TokenKind::kEndBlock);
  }

  NodePtr statement() {
    const std::string word = name();
    if (word == "if") return if_statement();
    if (word == "for") return for_statement();
    if (word == "set") return set_statement();
    if (word == "macro") return macro();
    if (word == "call") return call_block();
    if (word == "with") return with_statement();
    if (word == "filter") return filter_block();
    if (word == "break" || word == "continue") {
      if (loops_ == 0) fail(fmt::format("has a '{}' outside of a loop", word));
      expect(TokenKind::kEndBlock);
      return make(word == "break" ? NodeKind::kBreak : NodeKind::kContinue);
    }
    if (word == "generation") { // marks what the model says
      expect(TokenKind::kEndBlock);
      NodePtr node = make(NodeKind::kGeneration);
      node->children.push_back(block({"endgeneration"}));
      end("endgeneration");
      return node;
    }
    fail(fmt::format("uses '{}', which is not supported,", word));
  }

  NodePtr if_statement() {
    NodePtr node = make(NodeKind::kIf);
    for (;;) {
      node->children.push_back(expression());
      expect(TokenKind::kEndBlock);
      node->children.push_back(block({"elif", "else", "endif"}));
      expect(TokenKind::kBeginBlock);
      if (accept("elif")) continue;
      if (accept("else")) {
        expect(TokenKind::kEndBlock);
        node->children.push_back(block({"endif"}));
        expect(TokenKind::kBeginBlock);
      }
      expect("endif");
      expect(TokenKind::kEndBlock);
      return node;
    }
  }

  NodePtr for_statement() {
    NodePtr node = make(NodeKind::kFor);
    const bool brackets = accept("(");
    do {
      node->names.push_back(name());
    } while (accept(","));
    if (brackets) expect(")");
    expect("in");
    node->children.push_back(or_expression());
    node->children.push_back(accept("if") ? expression() : nullptr);
    if (is_name("recursive")) fail("has a recursive loop, which is not supported");
    expect(TokenKind::kEndBlock);
    ++loops_;
    node->children.push_back(block({"else", "endfor"}));
    --loops_;
    expect(TokenKind::kBeginBlock);
    if (accept("else")) {
      expect(TokenKind::kEndBlock);
      node->children.push_back(block({"endfor"}));
      expect(TokenKind::kBeginBlock);
    } else {
      node->children.push_back(nullptr);
    }
    expect("endfor");
    expect(TokenKind::kEndBlock);
    return node;
  }

  NodePtr set_statement() {
    NodePtr node = make(NodeKind::kSet);
    do {
      std::string target = name();
      if (accept(".")) target += "." + name();
      node->names.push_back(std::move(target));
    } while (accept(","));
    if (accept("=")) {
      node->children.push_back(tuple());
      expect(TokenKind::kEndBlock);
      return node;
    }
    if (node->names.size() != 1) fail("has no '=' where one is needed");
    node->kind = NodeKind::kSetBlock;
    expect(TokenKind::kEndBlock);
    node->children.push_back(captured("endset"));
    end("endset");
    return node;
  }

  NodePtr with_statement() {
    NodePtr node = make(NodeKind::kWith);
    while (now().kind != TokenKind::kEndBlock) {
      if (!node->names.empty()) expect(",");
      node->names.push_back(name());
      expect("=");
      node->children.push_back(expression());
    }
    expect(TokenKind::kEndBlock);
    node->children.push_back(block({"endwith"}));
    end("endwith");
    return node;
  }

  /// {% filter upper | trim %} ... {% endfilter %} is {{ "..." | upper | trim }}.
  NodePtr filter_block() {
    NodePtr value = filters(one_filter(make(NodeKind::kCapture)));
    expect(TokenKind::kEndBlock);
    NodePtr body = captured("endfilter");
    end("endfilter");
    Node* capture = value.get();
    while (capture->kind != NodeKind::kCapture) capture = capture->children[0].get();
    capture->children.push_back(std::move(body));
    return make_of(NodeKind::kPrint, "", std::move(value));
  }

  NodePtr macro() {
    NodePtr node = make(NodeKind::kMacro, name());
    std::vector<NodePtr> defaults = parameters(*node);
    macro_body(*node, std::move(defaults), "endmacro");
    return node;
  }
  /// (a, b=1): the names, and the default values, null where there is none.
  std::vector<NodePtr> parameters(Node& macro) {
    std::vector<NodePtr> defaults;
    expect("(");
    while (!accept(")")) {
      if (!macro.names.empty()) expect(",");
      macro.names.push_back(name());
      defaults.push_back(accept("=") ? expression() : nullptr);
    }
    return defaults;
  }
  void macro_body(Node& macro, std::vector<NodePtr> defaults, std::string_view end_word) {
    expect(TokenKind::kEndBlock);
    std::set<std::string> outside = std::exchange(extras_, {});
    macro.children.push_back(captured(end_word));
    end(end_word);
    macro.extras = extras_;
    extras_.merge(outside);
    for (NodePtr& value : defaults) macro.children.push_back(std::move(value));
  }

  /// {% call(a) f(x) %} ... {% endcall %}: f finds the body as caller(a).
  NodePtr call_block() {
    NodePtr caller = make(NodeKind::kMacro, "caller");
    std::vector<NodePtr> defaults;
    if (is_operator("(")) defaults = parameters(*caller);
    NodePtr call = expression();
    if (call->kind != NodeKind::kCall) fail("has a 'call' without a call of a macro");
    macro_body(*caller, std::move(defaults), "endcall");
    return make_of(NodeKind::kCallBlock, "", std::move(call), std::move(caller));
  }

  /// One expression, or several with commas between them, which are a list.
  NodePtr tuple() {
    NodePtr first = expression();
    if (!is_operator(",")) return first;
    NodePtr list = make(NodeKind::kList, "tuple");
    list->children.push_back(std::move(first));
    while (accept(",")) {
      if (now().kind == TokenKind::kEndPrint || now().kind == TokenKind::kEndBlock ||
          is_operator(")"))
        break;
      list->children.push_back(expression());
    }
    return list;
  }

  NodePtr expression() {
    const Depth depth(*this);
    NodePtr value = or_expression();
    for (int chain = 0; accept("if");) {
      check_chain(chain);
      NodePtr condition = or_expression();
      NodePtr other = accept("else") ? expression() : nullptr;
      value = make_of(NodeKind::kCondition, "", std::move(value), std::move(condition),
                      std::move(other));
    }
    return value;
  }
  NodePtr or_expression() {
    NodePtr left = and_expression();
    for (int chain = 0; accept("or"); check_chain(chain))
      left = make_of(NodeKind::kOr, "", std::move(left), and_expression());
    return left;
  }
  NodePtr and_expression() {
    NodePtr left = not_expression();
    for (int chain = 0; accept("and"); check_chain(chain))
      left = make_of(NodeKind::kAnd, "", std::move(left), not_expression());
    return left;
  }
  NodePtr not_expression() {
    const Depth depth(*this);
    if (accept("not")) return make_of(NodeKind::kNot, "", not_expression());
    return comparison();
  }
  NodePtr comparison() {
    NodePtr node = make(NodeKind::kCompare);
    node->children.push_back(binary(0));
    for (;;) {
      std::string found;
      if (is_name("not") && peek().kind == TokenKind::kName && peek().text == "in") {
        at_ += 2;
        found = "not in";
      } else {
        for (const std::string_view op : {"==", "!=", "<=", ">=", "<", ">", "in"}) {
          if (accept(op)) {
            found = op;
            break;
          }
        }
      }
      if (found.empty()) break;
      node->names.push_back(std::move(found));
      node->children.push_back(binary(0));
    }
    return node->names.empty() ? std::move(node->children[0]) : std::move(node);
  }
  NodePtr binary(size_t level) {
    static const std::array<std::vector<std::string_view>, 4> kLevels = {
        {{"+", "-"}, {"~"}, {"*", "/", "//", "%"}, {"**"}}};
    if (level == kLevels.size()) return unary();
    NodePtr left = binary(level + 1);
    int chain = 0;
    for (bool more = true; more;) {
      more = false;
      check_chain(chain);
      for (const std::string_view op : kLevels[level]) {
        if (!is_operator(op)) continue;
        ++at_;
        left = make_of(NodeKind::kBinary, std::string(op), std::move(left), binary(level + 1));
        more = true;
        break;
      }
    }
    return left;
  }
  /// Filters belong to the whole of a number and its signs.
  NodePtr unary() { return filters(signed_value()); }
  NodePtr signed_value() {
    const Depth depth(*this);
    for (const char* op : {"-", "+"}) {
      if (!is_operator(op)) continue;
      ++at_;
      return postfix(make_of(NodeKind::kUnary, op, signed_value()));
    }
    return postfix(primary());
  }

  NodePtr primary() {
    const Token token = now();
    switch (token.kind) {
    case TokenKind::kString: {
      NodePtr node = make(NodeKind::kConstant);
      std::string text;
      while (now().kind == TokenKind::kString) text += take().text;
      node->constant = std::move(text);
      return node;
    }
    case TokenKind::kInteger:
      return constant(static_cast<int64_t>(std::stoll(take().text)));
    case TokenKind::kFloat:
      return constant(std::strtod(take().text.c_str(), nullptr));
    case TokenKind::kName:
      ++at_;
      if (token.text == "true" || token.text == "True") return constant(true);
      if (token.text == "false" || token.text == "False") return constant(false);
      if (token.text == "none" || token.text == "None") return constant(None{});
      if (token.text == "varargs" || token.text == "kwargs" || token.text == "caller")
        extras_.insert(token.text);
      return make(NodeKind::kName, token.text);
    default:
      break;
    }
    if (accept("(")) {
      if (accept(")")) return make(NodeKind::kList, "tuple");
      NodePtr inner = tuple();
      expect(")");
      return inner;
    }
    if (accept("[")) {
      NodePtr list = make(NodeKind::kList);
      while (!accept("]")) {
        if (!list->children.empty()) expect(",");
        if (accept("]")) break;
        list->children.push_back(expression());
      }
      return list;
    }
    if (accept("{")) return dictionary();
    fail("has no value where one is needed");
  }
  NodePtr constant(Value value) const {
    NodePtr node = make(NodeKind::kConstant);
    node->constant = std::move(value);
    return node;
  }
  NodePtr dictionary() {
    NodePtr dict = make(NodeKind::kDict);
    while (!accept("}")) {
      if (!dict->children.empty()) expect(",");
      if (accept("}")) break;
      dict->children.push_back(expression());
      expect(":");
      dict->children.push_back(expression());
    }
    return dict;
  }

  NodePtr postfix(NodePtr value) {
    for (int count = 0;; ++count) {
      if (count > kMaxNesting) fail("has a chain of members that is too long");
      if (accept(".")) {
        if (now().kind == TokenKind::kInteger) {
          value = make_of(NodeKind::kIndex, "", std::move(value),
                          constant(static_cast<int64_t>(std::stoll(take().text))));
        } else {
          const std::string member = name();
          value = make_of(NodeKind::kAttribute, member, std::move(value));
        }
      } else if (accept("[")) {
        value = subscript(std::move(value));
      } else if (is_operator("(")) {
        value = make_of(NodeKind::kCall, "", std::move(value));
        arguments(*value);
      } else {
        return value;
      }
    }
  }
  NodePtr subscript(NodePtr value) {
    NodePtr parts[3];
    int part = 0;
    bool slice = false;
    while (!accept("]")) {
      if (accept(":")) {
        slice = true;
        if (++part > 2) fail("has a slice of more than three parts");
      } else {
        if (parts[part] != nullptr) fail("has no ']' where one is needed");
        parts[part] = expression();
      }
    }
    if (!slice) {
      if (parts[0] == nullptr) fail("has an empty index");
      return make_of(NodeKind::kIndex, "", std::move(value), std::move(parts[0]));
    }
    return make_of(NodeKind::kSlice, "", std::move(value), std::move(parts[0]), std::move(parts[1]),
                   std::move(parts[2]));
  }
  void arguments(Node& node) {
    expect("(");
    for (bool first = true; !accept(")"); first = false) {
      if (!first) {
        expect(",");
        if (accept(")")) break;
      }
      std::string keyword;
      if (now().kind == TokenKind::kName && peek().kind == TokenKind::kOperator &&
          peek().text == "=") {
        keyword = take().text;
        ++at_;
      } else if (is_operator("*") || is_operator("**")) {
        keyword = take().text;
      }
      node.names.push_back(std::move(keyword));
      node.children.push_back(expression());
    }
  }

  NodePtr one_filter(NodePtr value) {
    std::string filter = name();
    value = make_of(NodeKind::kFilter, std::move(filter), std::move(value));
    if (is_operator("(")) arguments(*value);
    return value;
  }
  NodePtr filters(NodePtr value) {
    for (int count = 0;; ++count) {
      if (count > kMaxNesting) fail("has a chain of filters that is too long");
      if (accept("|")) {
        value = postfix(one_filter(std::move(value)));
      } else if (accept("is")) {
        const bool negated = accept("not");
        const std::string test = name();
        value = make_of(NodeKind::kTest, test, std::move(value));
        value->negated = negated;
        if (is_operator("(")) {
          arguments(*value);
        } else if (now().kind == TokenKind::kString || now().kind == TokenKind::kInteger ||
                   (now().kind == TokenKind::kName && !is_name("and") && !is_name("or") &&
                    !is_name("else") && !is_name("is") && !is_name("if") && !is_name("not") &&
                    !is_name("in")) ||
                   is_operator("[")) {
          value->names.emplace_back();
          value->children.push_back(postfix(primary()));
        }
      } else {
        return value;
      }
    }
  }

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int depth_ = 0;
  int loops_ = 0;                ///< around a statement
  std::set<std::string> extras_; ///< varargs, kwargs and caller, if they have been read
};

} // namespace

NodePtr parse(std::string_view source, const TemplateRules& rules) {
  if (source.size() > kMaxBytes)
    raise<DataError>("a chat template of {} bytes is longer than the limit of {}", source.size(),
                     kMaxBytes);
  if (!is_utf8(source)) throw DataError("the chat template is not UTF-8");
  return Parser(source, rules).run();
}

} // namespace pentatron::data::tokenizer::chat
