#include "pentatron/data/tokenizer/chat/value.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "pentatron/base/error.h"
#include "pentatron/base/text.h"
#include "pentatron/data/tokenizer/unicode.h"

namespace pentatron::data::tokenizer::chat {

namespace {

constexpr int kMaxValueDepth = 64;

void check_depth(int depth) {
  if (depth > kMaxValueDepth) throw DataError("a value of the chat template is nested too deep");
}

void contain(Value& outer, const Value& inner) {
  outer.depth = std::max(outer.depth, inner.depth + 1);
  outer.nodes += inner.nodes;
  check_depth(outer.depth);
  if (outer.nodes > kMaxValueNodes) throw DataError("a value of the chat template is too large");
}

std::string real_text(double d) {
  if (std::isfinite(d) && d == std::floor(d) && std::fabs(d) < 1e16)
    return fmt::format("{:.1f}", d);
  if (std::isnan(d)) return "nan"; // without a sign
  return fmt::format("{}", d);
}

/// str.isprintable of Python.
bool is_printable(char32_t c) {
  if (c < 0x7f) return c >= ' ';
  switch (char_tables().category[c]) {
  case Category::kCn:
  case Category::kCc:
  case Category::kCf:
  case Category::kCo:
  case Category::kCs:
  case Category::kZl:
  case Category::kZp:
  case Category::kZs:
    return false;
  default:
    return true;
  }
}

/// A string as Python prints it within a list.
std::string quoted(const std::string& text) {
  const char quote =
      text.find('\'') != std::string::npos && text.find('"') == std::string::npos ? '"' : '\'';
  std::string out(1, quote);
  for_each_code_point(text, [&](char32_t c) {
    const auto number = static_cast<uint32_t>(c);
    if (c == '\n')
      out += "\\n";
    else if (c == '\t')
      out += "\\t";
    else if (c == '\r')
      out += "\\r";
    else if (!is_printable(c))
      out += c < 0x100     ? fmt::format("\\x{:02x}", number)
             : c < 0x10000 ? fmt::format("\\u{:04x}", number)
                           : fmt::format("\\U{:08x}", number);
    else {
      if (c == static_cast<char32_t>(quote) || c == '\\') out += '\\';
      append_utf8(out, c);
    }
  });
  return out + quote;
}

} // namespace

std::string repr(const Value& v, int depth) {
  check_depth(depth);
  if (const std::string* text = v.string())
    return v.is_markup ? "Markup(" + quoted(*text) + ")" : quoted(*text);
  std::string out;
  if (const List* list = v.list()) {
    for (const Value& item : *list) {
      out += (out.empty() ? "" : ", ") + repr(item, depth + 1);
      check_length(out);
    }
    if (v.is_tuple) return "(" + out + (list->size() == 1 ? ",)" : ")");
    return "[" + out + "]";
  }
  if (const Dict* dict = v.dict()) {
    for (const auto& [key, item] : *dict) {
      out += (out.empty() ? "" : ", ") + repr(key, depth + 1) + ": " + repr(item, depth + 1);
      check_length(out);
    }
    return "{" + out + "}";
  }
  return to_text(v);
}

void check_length(const std::string& text) {
  if (text.size() > kMaxValueBytes) throw DataError("a string of the chat template is too long");
}

Value make_list(List list) {
  auto items = std::make_shared<List>(std::move(list));
  Value made(items);
  for (const Value& item : *items) contain(made, item);
  return made;
}

Value make_dict(Dict dict) {
  auto members = std::make_shared<Dict>(std::move(dict));
  Value made(members);
  for (const auto& [key, value] : *members) contain(made, value);
  return made;
}

Value make_method(std::string name, const Value& self) {
  Value made(Function{.name = std::move(name), .self = std::make_shared<Value>(self)});
  contain(made, self);
  return made;
}

Value from_json(const nlohmann::ordered_json& json) {
  using Type = nlohmann::ordered_json::value_t;
  switch (json.type()) {
  case Type::boolean:
    return json.get<bool>();
  case Type::number_unsigned:
    if (json.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
      raise<DataError>("the integer {} is too large", json.get<uint64_t>());
    [[fallthrough]];
  case Type::number_integer:
    return json.get<int64_t>();
  case Type::number_float:
    return json.get<double>();
  case Type::string:
    if (!is_utf8(json.get_ref<const std::string&>()))
      throw DataError("a text for the chat template is not UTF-8");
    return json.get<std::string>();
  case Type::array: {
    List list;
    for (const auto& item : json) list.push_back(from_json(item));
    return make_list(std::move(list));
  }
  case Type::object: {
    Dict dict;
    for (const auto& [key, item] : json.items()) dict.emplace_back(key, from_json(item));
    return make_dict(std::move(dict));
  }
  default:
    return None{};
  }
}

const Value* find_member(const Dict& dict, const Value& key) {
  for (const auto& [name, value] : dict) {
    if (equal(name, key)) return &value;
  }
  return nullptr;
}

bool is_true(const Value& v) {
  if (const bool* b = v.get<bool>()) return *b;
  if (const int64_t* i = v.get<int64_t>()) return *i != 0;
  if (const double* d = v.get<double>()) return *d != 0;
  if (const std::string* s = v.string()) return !s->empty();
  if (const List* l = v.list()) return !l->empty();
  if (const Dict* d = v.dict()) return !d->empty();
  return v.get<Function>() != nullptr;
}

bool to_integer(const Value& v, int64_t& out) {
  if (const bool* b = v.get<bool>()) {
    out = *b ? 1 : 0;
    return true;
  }
  const int64_t* i = v.get<int64_t>();
  if (i != nullptr) out = *i;
  return i != nullptr;
}

bool to_real(const Value& v, double& out) {
  int64_t i = 0;
  if (to_integer(v, i)) {
    out = static_cast<double>(i);
    return true;
  }
  const double* d = v.get<double>();
  if (d != nullptr) out = *d;
  return d != nullptr;
}

bool equal(const Value& a, const Value& b) {
  double x = 0, y = 0;
  if (to_real(a, x) && to_real(b, y)) return x == y;
  if (a.string() != nullptr && b.string() != nullptr) return *a.string() == *b.string();
  if (const List* l = a.list(), *r = b.list(); l != nullptr && r != nullptr) {
    if (l->size() != r->size() || a.is_tuple != b.is_tuple) return false;
    for (size_t i = 0; i < l->size(); ++i) {
      if (!equal((*l)[i], (*r)[i])) return false;
    }
    return true;
  }
  if (const Dict* l = a.dict(), *r = b.dict(); l != nullptr && r != nullptr) {
    if (l->size() != r->size()) return false;
    for (const auto& [key, item] : *l) {
      const Value* other = find_member(*r, key);
      if (other == nullptr || !equal(item, *other)) return false;
    }
    return true;
  }
  return (a.is_none() && b.is_none()) || (a.is_undefined() && b.is_undefined());
}

int compare(const Value& a, const Value& b) {
  double x = 0, y = 0;
  if (to_real(a, x) && to_real(b, y)) return x < y ? -1 : x > y ? 1 : 0;
  if (a.string() != nullptr && b.string() != nullptr) {
    const int order = a.string()->compare(*b.string());
    return order < 0 ? -1 : order > 0 ? 1 : 0;
  }
  if (const List* l = a.list(), *r = b.list();
      l != nullptr && r != nullptr && a.is_tuple == b.is_tuple) {
    for (size_t i = 0; i < std::min(l->size(), r->size()); ++i)
      if (!equal((*l)[i], (*r)[i])) return compare((*l)[i], (*r)[i]);
    return l->size() < r->size() ? -1 : l->size() > r->size() ? 1 : 0;
  }
  raise<DataError>("{} and {} cannot be compared", type_name(a), type_name(b));
}

std::string to_text(const Value& v) {
  if (const std::string* s = v.string()) return *s;
  if (v.is_undefined()) return {};
  if (v.is_none()) return "None";
  if (const bool* b = v.get<bool>()) return *b ? "True" : "False";
  if (const int64_t* i = v.get<int64_t>()) return std::to_string(*i);
  if (const double* d = v.get<double>()) return real_text(*d);
  if (v.get<Function>() != nullptr) throw DataError("a function cannot be printed");
  return repr(v, 0);
}

std::string to_json(const Value& v, const JsonStyle& style, int depth) {
  check_depth(depth);
  const auto line = [&](int level) {
    std::string out;
    if (style.indent < 0) return out;
    out += '\n';
    out.append(static_cast<size_t>(style.indent) * static_cast<size_t>(level), ' ');
    return out;
  };
  const auto quoted = [&](const std::string& text) {
    return nlohmann::json(text).dump(-1, ' ', style.ascii);
  };
  std::string out;
  if (const List* list = v.list()) {
    if (list->empty()) return "[]";
    for (const Value& item : *list) {
      out += (out.empty() ? "" : style.item) + line(depth + 1) + to_json(item, style, depth + 1);
      check_length(out);
    }
    return "[" + out + line(depth) + "]";
  }
  if (const Dict* dict = v.dict()) {
    if (dict->empty()) return "{}";
    std::vector<const std::pair<Value, Value>*> members;
    for (const auto& member : *dict) members.push_back(&member);
    if (style.sort_keys)
      std::ranges::stable_sort(
          members, [](const auto* a, const auto* b) { return compare(a->first, b->first) < 0; });
    for (const auto* member : members) {
      const std::string* text = member->first.string();
      out += (out.empty() ? "" : style.item) + line(depth + 1) +
             quoted(text != nullptr ? *text : to_json(member->first, style, depth + 1)) +
             style.key + to_json(member->second, style, depth + 1);
      check_length(out);
    }
    return "{" + out + line(depth) + "}";
  }
  if (const std::string* s = v.string()) return quoted(*s);
  if (v.is_none()) return "null";
  if (const bool* b = v.get<bool>()) return *b ? "true" : "false";
  if (const double* d = v.get<double>(); d != nullptr && !std::isfinite(*d))
    return std::isnan(*d) ? "NaN" : *d > 0 ? "Infinity" : "-Infinity";
  if (v.is_undefined() || v.get<Function>() != nullptr)
    raise<DataError>("{} cannot be written as JSON", type_name(v));
  return to_text(v);
}

std::string_view type_name(const Value& v) {
  constexpr std::string_view kNames[] = {"something undefined",
                                         "None",
                                         "a boolean",
                                         "an integer",
                                         "a float",
                                         "a string",
                                         "a list",
                                         "a dictionary",
                                         "a function"};
  return v.is_tuple ? "a tuple" : kNames[v.data.index()];
}

int64_t length(const Value& v) {
  if (const std::string* s = v.string()) {
    int64_t n = 0;
    for (const char c : *s) n += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
    return n;
  }
  if (const List* l = v.list()) return static_cast<int64_t>(l->size());
  if (const Dict* d = v.dict()) return static_cast<int64_t>(d->size());
  if (v.is_undefined()) return 0;
  raise<DataError>("{} has no length", type_name(v));
}

List elements(const Value& v) {
  List out;
  if (const List* l = v.list()) return *l;
  if (const Dict* d = v.dict()) {
    for (const auto& [key, item] : *d) out.emplace_back(key);
  } else if (const std::string* s = v.string()) {
    for (size_t i = 0; i < s->size(); i += utf8_length((*s)[i]))
      out.emplace_back(s->substr(i, utf8_length((*s)[i])));
  } else if (!v.is_undefined()) {
    raise<DataError>("{} has no elements", type_name(v));
  }
  return out;
}

} // namespace pentatron::data::tokenizer::chat
