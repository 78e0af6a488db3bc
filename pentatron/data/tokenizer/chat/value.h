/// The values of chat templates: Python's, as far as templates need them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <nlohmann/json.hpp>

namespace pentatron::data::tokenizer::chat {

struct Node;
struct Value;
using List = std::vector<Value>;
/// In the order of insertion. Keys are strings, numbers, booleans or None.
using Dict = std::vector<std::pair<Value, Value>>;

struct Undefined {
  std::string name;      ///< for messages
  bool is_empty = false; ///< printed as nothing, also where printing another one is an error
};
struct None {};
/// A function by name, or a method with what it belongs to.
struct Function {
  std::string name;
  std::shared_ptr<Value> self;
  const Node* macro = nullptr;
};

struct Value {
  std::variant<Undefined, None, bool, int64_t, double, std::string, std::shared_ptr<List>,
               std::shared_ptr<Dict>, Function>
      data;
  bool is_namespace = false; ///< a dictionary whose members may be set
  bool is_tuple = false;     ///< a list that prints with round brackets
  bool is_markup = false;    ///< a string of Jinja's Markup: what joins it is escaped
  int32_t depth = 0;         ///< how deep lists, dictionaries and methods are in each other
  int64_t nodes = 1;         ///< values in it; what occurs twice counts twice

  Value() = default;
  template <class T>
  requires(!std::is_same_v<std::decay_t<T>, Value>) Value(T v)
      : data(std::move(v)) {} // NOLINT: conversions are wanted
  Value(const char* text) : data(std::string(text)) {}

  template <class T> const T* get() const { return std::get_if<T>(&data); }
  bool is_undefined() const { return get<Undefined>() != nullptr; }
  bool is_none() const { return get<None>() != nullptr; }
  const std::string* string() const { return get<std::string>(); }
  const List* list() const {
    const auto* p = get<std::shared_ptr<List>>();
    return p == nullptr ? nullptr : p->get();
  }
  const Dict* dict() const {
    const auto* p = get<std::shared_ptr<Dict>>();
    return p == nullptr ? nullptr : p->get();
  }
};

/// Longer strings are refused.
inline constexpr size_t kMaxValueBytes = size_t{16} << 20;
/// Throws DataError for a longer string.
void check_length(const std::string& text);

inline constexpr int64_t kMaxValueNodes = 1'000'000;

/// These throw DataError for what is nested too deep or has too many values.
Value make_list(List list);
Value make_dict(Dict dict);
/// A method of `self`.
Value make_method(std::string name, const Value& self);
inline Value make_tuple(List list) {
  Value v = make_list(std::move(list));
  v.is_tuple = true;
  return v;
}
inline Value make_markup(std::string text) {
  Value v = std::move(text);
  v.is_markup = true;
  return v;
}

Value from_json(const nlohmann::ordered_json& json);
const Value* find_member(const Dict& dict, const Value& key);

bool is_true(const Value& v);
/// An integer of an integer or boolean; false for other types.
bool to_integer(const Value& v, int64_t& out);
bool to_real(const Value& v, double& out);
bool equal(const Value& a, const Value& b);
/// -1, 0 or 1; throws DataError for types that have no order.
int compare(const Value& a, const Value& b);
/// What {{ v }} prints: text as it is, None, True, [1, 'a'].
std::string to_text(const Value& v);
/// What Python's repr() returns: text in quotation marks.
std::string repr(const Value& v, int depth = 0);
/// The arguments of Python's json.dumps; indent < 0 is one line.
struct JsonStyle {
  int indent = -1;
  std::string item = ", ", key = ": "; ///< separators
  bool sort_keys = false, ascii = false;
};
std::string to_json(const Value& v, const JsonStyle& style, int depth = 0);
/// "a string" and the like, for messages.
std::string_view type_name(const Value& v);
/// The number of characters, elements or members; throws DataError for other types.
int64_t length(const Value& v);
/// Elements, keys, or characters; throws DataError for what cannot be gone through.
List elements(const Value& v);

} // namespace pentatron::data::tokenizer::chat
