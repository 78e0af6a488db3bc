#include "pentatron/data/tokenizer/chat/interpreter.h"

#include <algorithm>
#include <ctime>
#include <memory>
#include <set>
#include <unordered_map>
#include <utility>

#include "pentatron/base/error.h"
#include "pentatron/data/tokenizer/chat/builtins.h"
#include "pentatron/data/tokenizer/chat/macro_scope.h"
#include "pentatron/data/tokenizer/chat/operators.h"
#include "pentatron/data/tokenizer/chat/signatures.h"

namespace pentatron::data::tokenizer::chat {

namespace {

constexpr int64_t kMaxSteps = 2'000'000;
constexpr size_t kMostArguments = 1000; ///< of a call
constexpr int kMaxCallDepth = 400;
constexpr size_t kMaxOutput = size_t{32} << 20;

constexpr const char* kStrftime = "strftime_now";
constexpr const char* kCycle = "loop.cycle";
constexpr const char* kChanged = "loop.changed";

enum class Flow : uint8_t { kOn, kBreak, kContinue };

class Interpreter {
 public:
  Interpreter(Scope variables, const TemplateRules& rules, const std::tm* now)
      : rules_(rules), now_(now) {
    scopes_.push_back(std::move(variables));
  }

  /// `marks` receives the bytes of each generation block; null: they are not wanted.
  std::string run(const Node& root, std::vector<std::pair<size_t, size_t>>* marks) {
    marks_ = marks;
    execute(root);
    return std::move(out_);
  }

 private:
  struct Depth {
    Depth(Interpreter& interpreter, const Node& node) : i(interpreter) {
      if (++i.depth_ > kMaxCallDepth) i.fail(node, "is nested too deep");
      if (++i.steps_ > kMaxSteps) i.fail(node, "takes too many steps");
    }
    ~Depth() { --i.depth_; }
    Interpreter& i;
  };

  [[noreturn]] static void fail(const Node& node, std::string_view what) {
    raise<DataError>("line {} of the chat template {}", node.line, what);
  }
  /// Runs `f`; a DataError gets the line.
  template <class F> static auto located(const Node& node, F&& f) {
    try {
      return f();
    } catch (const DataError& error) {
      const std::string_view message = error.what();
      if (message.starts_with("line ")) throw;
      raise<DataError>("line {} of the chat template: {}", node.line, message);
    }
  }

  void write(const Node& node, std::string_view text) {
    out_ += text;
    if (out_.size() > kMaxOutput) fail(node, "writes too much");
  }

  Value lookup(const std::string& name) const {
    for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
      if (const auto found = scope->find(name); found != scope->end()) return found->second;
    }
    for (const char* known : {"range", "namespace", "raise_exception", "dict"}) {
      if (name == known) return Function{.name = name, .self = nullptr};
    }
    if (name == kStrftime && now_ != nullptr) return Function{.name = name, .self = nullptr};
    return Undefined{name};
  }

  Flow execute(const Node& node) {
    const Depth depth(*this, node);
    switch (node.kind) {
    case NodeKind::kBlock:
      for (const NodePtr& child : node.children) {
        if (const Flow flow = execute(*child); flow != Flow::kOn) return flow;
      }
      return Flow::kOn;
    case NodeKind::kText:
      write(node, node.text);
      return Flow::kOn;
    case NodeKind::kPrint: {
      const Value value = evaluate(*node.children[0]);
      check_defined(node, value, "prints");
      if (const List* list = value.list())
        for (const Value& item : *list) check_defined(node, item, "prints");
      write(node, located(node, [&] { return to_text(value); }));
      return Flow::kOn;
    }
    case NodeKind::kIf: {
      size_t i = 0;
      for (; i + 1 < node.children.size(); i += 2) {
        if (truth(node, evaluate(*node.children[i]))) return execute(*node.children[i + 1]);
      }
      return i < node.children.size() ? execute(*node.children[i]) : Flow::kOn;
    }
    case NodeKind::kFor:
      loop(node);
      return Flow::kOn;
    case NodeKind::kSet:
      assign(node, evaluate(*node.children[0]));
      return Flow::kOn;
    case NodeKind::kSetBlock:
      assign(node, capture(*node.children[0]));
      return Flow::kOn;
    case NodeKind::kWith:
      return with(node);
    case NodeKind::kMacro:
      scopes_.back()[node.text] = Function{.name = node.text, .self = nullptr, .macro = &node};
      return Flow::kOn;
    case NodeKind::kCallBlock:
      write(node, call_block(node));
      return Flow::kOn;
    case NodeKind::kGeneration: {
      const size_t begin = out_.size();
      const Flow flow = execute(*node.children[0]);
      if (marks_ != nullptr && captures_ == 0) marks_->emplace_back(begin, out_.size());
      return flow;
    }
    case NodeKind::kBreak:
      return Flow::kBreak;
    case NodeKind::kContinue:
      return Flow::kContinue;
    default:
      fail(node, "has an expression where a statement is needed");
    }
  }

  /// As Jinja's StrictUndefined: what is undefined may only be tested, or replaced by a default.
  void check_defined(const Node& node, const Value& value, const char* does) const {
    if (const Undefined* none = value.get<Undefined>();
        none != nullptr && rules_.strict_undefined && !none->is_empty)
      fail(node, fmt::format("{} '{}', which is undefined", does, none->name));
  }
  bool truth(const Node& node, const Value& value) const {
    check_defined(node, value, "asks for the truth of");
    return is_true(value);
  }

  Flow with(const Node& node) {
    Scope inner;
    for (size_t i = 0; i < node.names.size(); ++i)
      inner[node.names[i]] = evaluate(*node.children[i]);
    scopes_.push_back(std::move(inner));
    const Flow flow = execute(*node.children.back());
    scopes_.pop_back();
    return flow;
  }

  std::string capture(const Node& body) {
    std::string before = std::exchange(out_, {});
    ++captures_;
    execute(body);
    --captures_;
    return std::exchange(out_, std::move(before));
  }

  void assign(const Node& node, const Value& value) {
    if (node.names.size() == 1) {
      assign_one(node, node.names[0], value);
      return;
    }
    const List parts = located(node, [&] { return elements(value); });
    if (parts.size() != node.names.size())
      fail(node, "assigns a different number of names and values");
    for (size_t i = 0; i < parts.size(); ++i) assign_one(node, node.names[i], parts[i]);
  }

  void assign_one(const Node& node, const std::string& name, const Value& value) {
    const size_t dot = name.find('.');
    if (dot == std::string::npos) {
      scopes_.back()[name] = value;
      return;
    }
    const Value object = lookup(name.substr(0, dot));
    const auto* dict = object.get<std::shared_ptr<Dict>>();
    if (dict == nullptr || !object.is_namespace)
      fail(node, "sets a member of something that is not a namespace");
    // Part of itself, it would never be freed.
    check_acyclic(node, value, dict->get(), 0);
    const std::string key = name.substr(dot + 1);
    for (auto& [known, held] : **dict) {
      if (*known.string() == key) {
        held = value;
        return;
      }
    }
    (*dict)->emplace_back(key, value);
  }

  void check_acyclic(const Node& node, const Value& value, const Dict* within, int depth) {
    if (depth > 32) fail(node, "nests values too deep");
    if (const Function* function = value.get<Function>(); function != nullptr && function->self)
      check_acyclic(node, *function->self, within, depth + 1);
    if (value.dict() == nullptr && value.list() == nullptr) return;
    if (++steps_ > kMaxSteps) fail(node, "takes too many steps");
    if (const Dict* dict = value.dict()) {
      if (dict == within) fail(node, "makes a namespace part of itself");
      for (const auto& [key, item] : *dict) check_acyclic(node, item, within, depth + 1);
    }
    if (const List* list = value.list()) {
      for (const Value& item : *list) check_acyclic(node, item, within, depth + 1);
    }
  }

  void loop(const Node& node) {
    const Value over = evaluate(*node.children[0]);
    check_defined(node, over, "goes through");
    List items = located(node, [&] { return elements(over); });
    if (node.children[1] != nullptr) {
      List kept;
      for (const Value& item : items) {
        scopes_.emplace_back();
        assign(node, item);
        const bool keep = truth(node, evaluate(*node.children[1]));
        scopes_.pop_back();
        if (keep) kept.push_back(item);
      }
      items = std::move(kept);
    }
    if (items.empty() && node.children[3] != nullptr) execute(*node.children[3]);
    const auto count = static_cast<int64_t>(items.size());
    seen_.emplace_back();
    for (int64_t i = 0; i < count; ++i) {
      scopes_.emplace_back();
      assign(node, items[static_cast<size_t>(i)]);
      scopes_.back()["loop"] = loop_value(items, i);
      const Flow flow = execute(*node.children[2]);
      scopes_.pop_back();
      if (flow == Flow::kBreak) break;
    }
    seen_.pop_back();
  }

  Value loop_value(const List& items, int64_t i) const {
    const auto count = static_cast<int64_t>(items.size());
    Dict loop = {{"index", i + 1},
                 {"index0", i},
                 {"first", i == 0},
                 {"last", i + 1 == count},
                 {"length", count},
                 {"revindex", count - i},
                 {"revindex0", count - i - 1},
                 {"depth", int64_t{1}}, // loops are not recursive
                 {"depth0", int64_t{0}},
                 {"cycle", make_method(kCycle, i)},
                 {"changed", make_method(kChanged, std::ssize(seen_) - 1)}};
    if (i > 0) loop.emplace_back("previtem", items[static_cast<size_t>(i - 1)]);
    if (i + 1 < count) loop.emplace_back("nextitem", items[static_cast<size_t>(i + 1)]);
    return make_dict(std::move(loop));
  }

  Value evaluate(const Node& node) {
    const Depth depth(*this, node);
    switch (node.kind) {
    case NodeKind::kConstant:
      return node.constant;
    case NodeKind::kName:
      return lookup(node.text);
    case NodeKind::kList: {
      List list;
      for (const NodePtr& child : node.children) list.push_back(evaluate(*child));
      return node.text.empty() ? make_list(std::move(list)) : make_tuple(std::move(list));
    }
    case NodeKind::kDict:
      return dictionary(node);
    case NodeKind::kAttribute: {
      const Value object = evaluate(*node.children[0]);
      return located(node, [&] { return member_of(object, node.text, Access::kDot); });
    }
    case NodeKind::kIndex:
      return index(node);
    case NodeKind::kSlice:
      return slice(node);
    case NodeKind::kCall:
      return call(node);
    case NodeKind::kFilter: {
      const Value value = evaluate(*node.children[0]);
      const Arguments given = arguments(node);
      Value made =
          located(node, [&] { return apply_filter(node.text, value, given, rules_.html_json); });
      count_steps_of(made);
      return made;
    }
    case NodeKind::kTest: {
      const Value value = evaluate(*node.children[0]);
      const Arguments given = arguments(node);
      return located(node, [&] { return apply_test(node.text, value, given); }) != node.negated;
    }
    case NodeKind::kNot:
      return !truth(node, evaluate(*node.children[0]));
    case NodeKind::kAnd: {
      Value left = evaluate(*node.children[0]);
      return truth(node, left) ? evaluate(*node.children[1]) : left;
    }
    case NodeKind::kOr: {
      Value left = evaluate(*node.children[0]);
      return truth(node, left) ? left : evaluate(*node.children[1]);
    }
    case NodeKind::kCapture:
      return capture(*node.children[0]);
    case NodeKind::kCondition:
      if (truth(node, evaluate(*node.children[1]))) return evaluate(*node.children[0]);
      if (node.children[2] != nullptr) return evaluate(*node.children[2]);
      return Undefined{.name = "if", .is_empty = true};
    case NodeKind::kCompare:
      return comparison(node);
    case NodeKind::kUnary:
    case NodeKind::kBinary:
      return arithmetic(node);
    default:
      fail(node, "has a statement where an expression is needed");
    }
  }

  Value dictionary(const Node& node) {
    Dict dict;
    for (size_t i = 0; i + 1 < node.children.size(); i += 2) {
      const Value key = evaluate(*node.children[i]);
      located(node, [&] { check_dictionary_key(key); });
      Value value = evaluate(*node.children[i + 1]);
      const auto same = std::find_if(dict.begin(), dict.end(),
                                     [&](const auto& e) { return equal(e.first, key); });
      if (same != dict.end())
        same->second = std::move(value);
      else
        dict.emplace_back(key, std::move(value));
    }
    return make_dict(std::move(dict));
  }

  Value index(const Node& node) {
    const Value object = evaluate(*node.children[0]);
    const Value at = evaluate(*node.children[1]);
    if (at.string() != nullptr)
      return located(node, [&] { return member_of(object, *at.string(), Access::kBrackets); });
    if (const Dict* dict = object.dict()) {
      const Value* found = find_member(*dict, at);
      return found != nullptr ? *found : Value(Undefined{to_text(at)});
    }
    int64_t i = 0;
    if (object.is_undefined() || !to_integer(at, i))
      fail(node, fmt::format("takes {} of {}", type_name(at), type_name(object)));
    const List all = located(node, [&] { return elements(object); });
    const auto count = static_cast<int64_t>(all.size());
    if (i < 0) i += count;
    if (i < 0 || i >= count) return Undefined{"element " + to_text(at)};
    Value one = all[static_cast<size_t>(i)];
    if (object.is_markup) one.is_markup = true;
    return one;
  }

  Value slice(const Node& node) {
    const Value object = evaluate(*node.children[0]);
    const List all = located(node, [&] { return elements(object); });
    const auto count = static_cast<int64_t>(all.size());
    const auto part = [&](size_t child, int64_t otherwise) {
      if (node.children[child] == nullptr) return otherwise;
      const Value v = evaluate(*node.children[child]);
      int64_t i = otherwise;
      if (!v.is_none() && !to_integer(v, i)) fail(node, "has a slice that is not of integers");
      return i;
    };
    const int64_t step = part(3, 1);
    if (step == 0 || step > (1 << 30) || step < -(1 << 30))
      fail(node, "has a slice whose step is 0 or too large");
    const auto clamp = [&](int64_t i) {
      if (i < 0) i = std::max<int64_t>(i, -count - 1) + count;
      return step > 0 ? std::clamp<int64_t>(i, 0, count) : std::clamp<int64_t>(i, -1, count - 1);
    };
    const bool from_given = node.children[1] != nullptr, to_given = node.children[2] != nullptr;
    int64_t i = from_given ? clamp(part(1, step > 0 ? 0 : count - 1)) : step > 0 ? 0 : count - 1;
    const int64_t end = to_given   ? clamp(part(2, step > 0 ? count : -count - 1))
                        : step > 0 ? count
                                   : -1;
    List out;
    for (; step > 0 ? i < end : i > end; i += step) out.push_back(all[static_cast<size_t>(i)]);
    if (object.string() == nullptr)
      return object.is_tuple ? make_tuple(std::move(out)) : make_list(std::move(out));
    std::string text;
    for (const Value& c : out) text += *c.string();
    return object.is_markup ? make_markup(std::move(text)) : Value(std::move(text));
  }

  Arguments arguments(const Node& node) {
    Arguments given;
    for (size_t i = 0; i < node.names.size(); ++i) {
      Value value = evaluate(*node.children[i + 1]);
      if (node.names[i].empty()) {
        given.values.push_back(std::move(value));
      } else if (node.names[i] == "*") {
        steps_ += value.nodes;
        for (Value& one : located(node, [&] { return elements(value); }))
          given.values.push_back(std::move(one));
      } else if (node.names[i] == "**") {
        steps_ += value.nodes;
        if (value.dict() == nullptr) fail(node, "has a '**' before what is not a dictionary");
        for (const auto& [key, one] : *value.dict()) {
          if (key.string() == nullptr) fail(node, "has arguments whose names are not strings");
          given.named.emplace_back(*key.string(), one);
        }
      } else {
        given.named.emplace_back(node.names[i], std::move(value));
      }
    }
    if (given.values.size() > kMostArguments)
      fail(node, fmt::format("has too many arguments, more than {}", kMostArguments));
    std::set<std::string_view> names;
    for (const auto& [name, value] : given.named)
      if (!names.insert(name).second)
        fail(node, fmt::format("gives the argument '{}' twice", name));
    return given;
  }

  Value call(const Node& node) {
    const Value callee = evaluate(*node.children[0]);
    const Arguments given = arguments(node);
    const Function* function = callee.get<Function>();
    if (function == nullptr) {
      const Undefined* undefined = callee.get<Undefined>();
      if (undefined != nullptr && undefined->name == kStrftime)
        fail(node, "prints a date (strftime_now), and none is given\n  try: "
                   "dataset.chat_date=2025-01-31");
      fail(node, fmt::format("calls {} '{}', which is not a supported function", type_name(callee),
                             undefined != nullptr ? undefined->name : ""));
    }
    if (function->macro != nullptr) return call_macro(node, *function, given, SIZE_MAX);
    return located(node, [&]() -> Value {
      if (function->name == kStrftime || function->name == kCycle || function->name == kChanged)
        check_arguments(Callable::kFunction, function->name, given, false);
      if (function->name == kCycle) {
        if (given.values.empty()) throw DataError("loop.cycle needs values");
        const auto i = static_cast<size_t>(*function->self->get<int64_t>());
        return given.values[i % given.values.size()];
      }
      if (function->name == kChanged) {
        const auto loop = static_cast<size_t>(*function->self->get<int64_t>());
        if (loop >= seen_.size()) throw DataError("loop.changed is called after its loop");
        const Value last = std::exchange(seen_[loop], make_list(given.values));
        steps_ += last.nodes;
        return !equal(last, seen_[loop]);
      }
      if (function->self != nullptr) return call_method(*function->self, function->name, given);
      if (function->name == kStrftime) return date(given);
      Value made = call_function(function->name, given);
      steps_ += made.nodes - 1;
      return made;
    });
  }

  std::string date(const Arguments& given) const {
    const std::string& format = string_of(needed(given, 0, "format", kStrftime), kStrftime);
    std::string out(1024, '\0');
    out.resize(std::strftime(out.data(), out.size(), format.c_str(), now_));
    return out;
  }

  /// The value of {% call %}: `caller` runs where it stands, among the variables of this place.
  std::string call_block(const Node& node) {
    const Node& call = *node.children[0];
    const Value callee = evaluate(*call.children[0]);
    const Function* function = callee.get<Function>();
    if (function == nullptr || function->macro == nullptr)
      fail(node, "has a 'call' of something that is not a macro");
    Value caller = make_method(kCaller, std::ssize(sites_));
    std::get<Function>(caller.data).macro = node.children[1].get();
    Arguments given = arguments(call);
    given.named.emplace_back(kCaller, std::move(caller));
    sites_.push_back(nullptr);
    std::string text = call_macro(call, *function, given, sites_.size() - 1);
    sites_.pop_back();
    return text;
  }

  /// The values that a call gives to the parameters of a macro, and to varargs, kwargs and caller.
  /// `site`: in sites_, of the call block that this is; SIZE_MAX: it is none.
  std::string call_macro(const Node& node, const Function& function, const Arguments& given,
                         size_t site) {
    const Node& macro = *function.macro;
    Scope scope = located(node, [&] { return macro_scope(macro, given); });
    // A macro sees what is set outside of loops, not where it is called; a caller sees what its
    // block does. The outermost scope is that of all.
    std::vector<Scope> others(1);
    const size_t own =
        function.self == nullptr ? SIZE_MAX : static_cast<size_t>(*function.self->get<int64_t>());
    std::vector<Scope>* block = nullptr;
    if (function.self != nullptr) {
      if (own >= sites_.size() || sites_[own] == nullptr)
        fail(node, "calls a caller outside of its macro, or in itself");
      block = std::exchange(sites_[own], nullptr);
      others.swap(*block);
    }
    std::swap(others.front(), scopes_.front());
    others.swap(scopes_);
    if (site != SIZE_MAX) sites_[site] = &others;
    scopes_.push_back(std::move(scope));
    for (size_t i = 0; i < macro.names.size(); ++i) {
      if (scopes_.back().contains(macro.names[i])) continue;
      const Node* otherwise = macro.children[i + 1].get();
      Value value = otherwise == nullptr ? Value(Undefined{macro.names[i]}) : evaluate(*otherwise);
      scopes_.back()[macro.names[i]] = std::move(value);
    }
    std::string text = capture(*macro.children[0]);
    scopes_.pop_back();
    others.swap(scopes_);
    std::swap(others.front(), scopes_.front());
    if (block != nullptr) {
      others.swap(*block);
      sites_[own] = block;
    }
    return text;
  }

  Value comparison(const Node& node) {
    Value left = evaluate(*node.children[0]);
    for (size_t i = 0; i < node.names.size(); ++i) {
      Value right = evaluate(*node.children[i + 1]);
      const std::string& op = node.names[i];
      steps_ += std::min(left.nodes, right.nodes);
      const bool holds = located(node, [&] {
        if (op == "==") return equal(left, right);
        if (op == "!=") return !equal(left, right);
        if (op == "in" || op == "not in") return contains(right, left) == (op == "in");
        const int order = compare(left, right);
        return op == "<" ? order < 0 : op == "<=" ? order <= 0 : op == ">" ? order > 0 : order >= 0;
      });
      if (!holds) return false;
      left = std::move(right);
    }
    return true;
  }

  static bool contains(const Value& all, const Value& one) {
    return apply_test("in", one, Arguments{.values = {all}, .named = {}});
  }

  Value arithmetic(const Node& node) {
    const Value left = evaluate(*node.children[0]);
    const bool sign = node.kind == NodeKind::kUnary;
    const Value right = !sign              ? evaluate(*node.children[1])
                        : node.text == "-" ? Value(int64_t{-1})
                                           : Value(int64_t{1});
    double number = 0;
    if (sign && !to_real(left, number))
      fail(node, fmt::format("applies '{}' to {}", node.text, type_name(left)));
    Value made = located(node, [&] { return apply_operator(sign ? "*" : node.text, left, right); });
    count_steps_of(made);
    return made;
  }

  /// What it takes to make a value.
  void count_steps_of(const Value& made) {
    constexpr size_t kBytesOfStep = 512;
    steps_ += made.string() != nullptr ? static_cast<int64_t>(made.string()->size() / kBytesOfStep)
                                       : made.nodes - 1;
  }

  std::vector<Scope> scopes_;
  /// What suspended macros' callers see, for each open call block; null before and in its caller.
  std::vector<std::vector<Scope>*> sites_;
  std::vector<Value> seen_; ///< by loop.changed, for each loop around a statement
  TemplateRules rules_;
  const std::tm* now_; ///< for strftime_now; null: it is not defined
  std::string out_;
  std::vector<std::pair<size_t, size_t>>* marks_ = nullptr;
  int captures_ = 0; ///< into how many values the output goes now, one inside the other
  int64_t steps_ = 0;
  int depth_ = 0;
};

} // namespace

std::string interpret(const Node& root, Scope variables, const TemplateRules& rules,
                      const std::tm* now, std::vector<std::pair<size_t, size_t>>* marks) {
  return Interpreter(std::move(variables), rules, now).run(root, marks);
}

} // namespace pentatron::data::tokenizer::chat
