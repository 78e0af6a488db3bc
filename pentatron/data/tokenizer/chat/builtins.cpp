#include "pentatron/data/tokenizer/chat/builtins.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "pentatron/base/error.h"
#include "pentatron/base/white_space.h"
#include "pentatron/data/regex.h"
#include "pentatron/data/tokenizer/unicode.h"

namespace pentatron::data::tokenizer::chat {

namespace {

const std::string& string_of(const Value& v, std::string_view what) {
  const std::string* text = v.string();
  if (text == nullptr) raise<DataError>("{} needs a string, not {}", what, type_name(v));
  return *text;
}

std::string strip(std::string_view text, const Value* characters, bool left, bool right) {
  if (characters == nullptr || characters->is_none()) {
    if (left) text = without_leading_space(text);
    return std::string(right ? without_trailing_space(text) : text);
  }
  const std::string& set = string_of(*characters, "strip");
  if (std::ranges::any_of(set, [](char c) { return static_cast<unsigned char>(c) >= 0x80; }))
    throw DataError("strip of characters beyond ASCII is not supported in chat templates");
  if (left) {
    const size_t begin = text.find_first_not_of(set);
    text.remove_prefix(std::min(begin, text.size()));
  }
  if (right) text = text.substr(0, text.find_last_not_of(set) + 1);
  return std::string(text);
}

std::string to_upper(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (static_cast<unsigned char>(c) >= 0x80)
      throw DataError("upper case of text beyond ASCII is not supported in chat templates");
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 32);
  }
  return out;
}

std::string title(std::string_view text, bool every_word) {
  std::string out = to_lower(text);
  bool start = true;
  for (char& c : out) {
    const bool letter = (c >= 'a' && c <= 'z') || static_cast<unsigned char>(c) >= 0x80;
    if (start && c >= 'a' && c <= 'z') c = static_cast<char>(c - 32);
    start = every_word && !letter;
  }
  return out;
}

std::string replace(const std::string& text, const std::string& from, const std::string& to,
                    int64_t count) {
  if (from.empty()) throw DataError("replace of an empty string is not supported");
  std::string out;
  size_t done = 0;
  for (size_t at = text.find(from); at != std::string::npos && count != 0; --count) {
    out.append(text, done, at - done);
    out += to;
    if (out.size() > kMaxValueBytes) throw DataError("a string of the chat template is too long");
    done = at + from.size();
    at = text.find(from, done);
  }
  return out.append(text, done);
}

List split(const std::string& text, const Value* separator, int64_t most) {
  List out;
  std::string_view rest = text;
  if (separator == nullptr || separator->is_none()) {
    for (;;) {
      rest = without_leading_space(rest);
      if (rest.empty()) return out;
      const size_t end = most-- == 0 ? rest.size() : find_space(rest).begin;
      out.emplace_back(std::string(rest.substr(0, end)));
      rest.remove_prefix(end);
    }
  }
  const std::string& by = string_of(*separator, "split");
  if (by.empty()) throw DataError("split has an empty separator");
  for (size_t at = rest.find(by); at != std::string_view::npos && most != 0; at = rest.find(by)) {
    out.emplace_back(std::string(rest.substr(0, at)));
    rest.remove_prefix(at + by.size());
    --most;
  }
  out.emplace_back(std::string(rest));
  return out;
}

std::string join(const List& items, const std::string& separator) {
  std::string out;
  for (size_t i = 0; i < items.size(); ++i) {
    if (i != 0) out += separator;
    out += to_text(items[i]);
    if (out.size() > kMaxValueBytes) throw DataError("a string of the chat template is too long");
  }
  return out;
}

int64_t integer_of(const Value* v, int64_t otherwise, std::string_view what) {
  if (v == nullptr || v->is_none()) return otherwise;
  int64_t out = 0;
  if (!to_integer(*v, out)) raise<DataError>("{} needs an integer, not {}", what, type_name(*v));
  return out;
}

bool starts_or_ends(const std::string& text, const Value& affix, bool start) {
  if (const List* any = affix.list()) {
    return std::any_of(any->begin(), any->end(),
                       [&](const Value& one) { return starts_or_ends(text, one, start); });
  }
  const std::string& wanted = string_of(affix, start ? "startswith" : "endswith");
  return start ? text.starts_with(wanted) : text.ends_with(wanted);
}

const Value& needed(const Arguments& arguments, size_t position, std::string_view name,
                    std::string_view what) {
  const Value* value = arguments.find(position, name);
  if (value == nullptr) raise<DataError>("{} needs an argument {}", what, name);
  return *value;
}

List items_of(const Value& v) {
  const Dict* dict = v.dict();
  if (dict == nullptr) raise<DataError>("items needs a dictionary, not {}", type_name(v));
  List out;
  for (const auto& [key, value] : *dict) out.push_back(make_tuple({Value(key), value}));
  return out;
}

Value path_of(const Value& v, const std::string& path) {
  Value out = v;
  for (const Value& part : split(path, std::make_unique<Value>(".").get(), -1))
    out = member_of(out, *part.string());
  return out;
}

List select(const Value& v, const Arguments& arguments, bool attribute, bool keep) {
  List out;
  Arguments rest;
  std::string path, test;
  size_t at = 0;
  if (attribute) path = string_of(needed(arguments, at++, "attribute", "selectattr"), "selectattr");
  if (const Value* name = arguments.find(at, "")) test = string_of(*name, "select");
  for (size_t i = at + 1; i < arguments.values.size(); ++i)
    rest.values.push_back(arguments.values[i]);
  for (const Value& item : elements(v)) {
    const Value looked_at = attribute ? path_of(item, path) : item;
    const bool holds = test.empty() ? is_true(looked_at) : apply_test(test, looked_at, rest);
    if (holds == keep) out.push_back(item);
  }
  return out;
}

Value map(const Value& v, const Arguments& arguments) {
  List out;
  const Value* attribute = arguments.find(SIZE_MAX, "attribute");
  const Value* otherwise = arguments.find(SIZE_MAX, "default");
  Arguments rest;
  for (size_t i = 1; i < arguments.values.size(); ++i) rest.values.push_back(arguments.values[i]);
  for (const Value& item : elements(v)) {
    if (attribute != nullptr) {
      Value found = path_of(item, string_of(*attribute, "map"));
      if (found.is_undefined() && otherwise != nullptr) found = *otherwise;
      out.push_back(std::move(found));
    } else {
      out.push_back(
          apply_filter(string_of(needed(arguments, 0, "filter", "map"), "map"), item, rest));
    }
  }
  return make_list(std::move(out));
}

Value to_number(const Value& v, bool real, const Value* otherwise) {
  double number = 0;
  bool good = to_real(v, number);
  if (const std::string* text = v.string()) {
    const std::string trimmed = strip(*text, nullptr, true, true);
    const auto [end, error] =
        std::from_chars(trimmed.data(), trimmed.data() + trimmed.size(), number);
    good = error == std::errc() && end == trimmed.data() + trimmed.size();
  }
  if (!good || !(std::fabs(number) < 9e18)) {
    if (otherwise != nullptr) return *otherwise;
    return real ? Value(0.0) : Value(int64_t{0});
  }
  return real ? Value(number) : Value(static_cast<int64_t>(number));
}

std::string indent(const std::string& text, const Arguments& arguments) {
  const Value* width = arguments.find(0, "width");
  const std::string pad =
      width != nullptr && width->string() != nullptr
          ? *width->string()
          : std::string(
                static_cast<size_t>(std::clamp<int64_t>(integer_of(width, 4, "indent"), 0, 1000)),
                ' ');
  const Value* first = arguments.find(1, "first");
  const Value* blank = arguments.find(2, "blank");
  std::string out;
  size_t begin = 0;
  for (bool start = true; begin <= text.size(); start = false) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const bool padded = start ? first != nullptr && is_true(*first)
                              : end > begin || (blank != nullptr && is_true(*blank));
    if (padded) out += pad;
    out.append(text, begin, end - begin);
    if (end < text.size()) out += '\n';
    if (out.size() > kMaxValueBytes) throw DataError("a string of the chat template is too long");
    begin = end + 1;
  }
  return out;
}

List sorted(List items, const Arguments& arguments) {
  const Value* reverse = arguments.find(0, "reverse");
  const Value* attribute = arguments.find(2, "attribute");
  const auto key = [&](const Value& v) {
    const Value looked_at = attribute == nullptr ? v : path_of(v, string_of(*attribute, "sort"));
    return looked_at.string() != nullptr ? Value(to_lower(*looked_at.string())) : looked_at;
  };
  std::stable_sort(items.begin(), items.end(),
                   [&](const Value& a, const Value& b) { return compare(key(a), key(b)) < 0; });
  if (reverse != nullptr && is_true(*reverse)) std::reverse(items.begin(), items.end());
  return items;
}

} // namespace

const Value* Arguments::find(size_t position, std::string_view name) const {
  if (position < values.size()) return &values[position];
  for (const auto& [key, value] : named) {
    if (key == name) return &value;
  }
  return nullptr;
}

Value member_of(const Value& value, std::string_view name) {
  if (value.is_undefined())
    raise<DataError>("'{}' is undefined, and has no member '{}'", value.get<Undefined>()->name,
                     name);
  if (const Dict* dict = value.dict()) {
    if (const Value* found = find_member(*dict, name)) return *found;
  }
  if (has_method(value, name))
    return Function{.name = std::string(name), .self = std::make_shared<Value>(value)};
  return Undefined{std::string(name)};
}

JsonStyle json_style(const Arguments& arguments) {
  JsonStyle style;
  const auto named = [&](const char* key) { return arguments.find(SIZE_MAX, key); };
  const auto flag = [&](const char* key) { return named(key) != nullptr && is_true(*named(key)); };
  for (const auto& [key, value] : arguments.named)
    if (key != "indent" && key != "separators" && key != "sort_keys" && key != "ensure_ascii")
      raise<DataError>("tojson with {} is not supported in chat templates", key);
  style.indent =
      static_cast<int>(std::clamp<int64_t>(integer_of(named("indent"), -1, "tojson"), -1, 16));
  if (style.indent >= 0) style.item = ",";
  style.sort_keys = flag("sort_keys");
  style.ascii = flag("ensure_ascii");
  if (const Value* separators = named("separators");
      separators != nullptr && !separators->is_none()) {
    const List* two = separators->list();
    if (two == nullptr || two->size() != 2)
      throw DataError("tojson needs separators of two strings");
    style.item = string_of((*two)[0], "tojson");
    style.key = string_of((*two)[1], "tojson");
  }
  return style;
}

Value apply_filter(std::string_view name, const Value& value, const Arguments& arguments) {
  if (name == "default" || name == "d") {
    const Value* otherwise = arguments.find(0, "default_value");
    const Value* falsy = arguments.find(1, "boolean");
    if (value.is_undefined() || (falsy != nullptr && is_true(*falsy) && !is_true(value)))
      return otherwise == nullptr ? Value("") : *otherwise;
    return value;
  }
  if (name == "trim") return strip(to_text(value), arguments.find(0, "chars"), true, true);
  if (name == "upper") return to_upper(to_text(value));
  if (name == "lower") return to_lower(to_text(value));
  if (name == "capitalize") return title(to_text(value), false);
  if (name == "title") return title(to_text(value), true);
  if (name == "length" || name == "count") return length(value);
  if (name == "string") return to_text(value);
  if (name == "safe") return value;
  if (name == "int") return to_number(value, false, arguments.find(0, "default"));
  if (name == "float") return to_number(value, true, arguments.find(0, "default"));
  if (name == "list") return make_list(elements(value));
  if (name == "items") return make_list(value.is_undefined() ? List{} : items_of(value));
  if (name == "tojson") return to_json(value, json_style(arguments));
  if (name == "join") {
    const Value* separator = arguments.find(0, "d");
    Value all = value;
    if (const Value* attribute = arguments.find(1, "attribute"))
      all = map(value, Arguments{.values = {}, .named = {{"attribute", *attribute}}});
    return join(elements(all), separator == nullptr ? "" : string_of(*separator, "join"));
  }
  if (name == "first" || name == "last") {
    const List all = elements(value);
    if (all.empty()) return Undefined{std::string(name)};
    return name == "first" ? all.front() : all.back();
  }
  if (name == "reverse") {
    List all = elements(value);
    std::reverse(all.begin(), all.end());
    return value.string() != nullptr ? Value(join(all, "")) : make_list(std::move(all));
  }
  if (name == "replace") {
    return replace(to_text(value), string_of(needed(arguments, 0, "old", name), name),
                   string_of(needed(arguments, 1, "new", name), name),
                   integer_of(arguments.find(2, "count"), -1, name));
  }
  if (name == "regex_replace") {
    const Regex regex(string_of(needed(arguments, 0, "pattern", name), name));
    return regex.replace(to_text(value), string_of(needed(arguments, 1, "repl", name), name),
                         integer_of(arguments.find(2, "count"), 0, name), kMaxValueBytes);
  }
  if (name == "indent") return indent(to_text(value), arguments);
  if (name == "map") return map(value, arguments);
  if (name == "select" || name == "reject")
    return make_list(select(value, arguments, false, name == "select"));
  if (name == "selectattr" || name == "rejectattr")
    return make_list(select(value, arguments, true, name == "selectattr"));
  if (name == "sort") return make_list(sorted(elements(value), arguments));
  if (name == "dictsort") {
    List all = items_of(value);
    std::stable_sort(all.begin(), all.end(), [](const Value& a, const Value& b) {
      return to_lower(*a.list()->front().string()) < to_lower(*b.list()->front().string());
    });
    return make_list(std::move(all));
  }
  if (name == "unique") {
    List out;
    for (const Value& item : elements(value)) {
      if (out.size() > 1000) throw DataError("unique has more than 1000 elements");
      if (std::none_of(out.begin(), out.end(), [&](const Value& v) { return equal(v, item); }))
        out.push_back(item);
    }
    return make_list(std::move(out));
  }
  if (name == "sum") {
    Value total = int64_t{0};
    double real = 0;
    int64_t integer = 0, one = 0;
    bool integers = true;
    for (const Value& item : elements(value)) {
      double d = 0;
      if (!to_real(item, d)) raise<DataError>("sum needs numbers, not {}", type_name(item));
      integers =
          integers && to_integer(item, one) && !__builtin_add_overflow(integer, one, &integer);
      real += d;
    }
    return integers ? Value(integer) : Value(real);
  }
  if (name == "min" || name == "max") {
    const List all = elements(value);
    if (all.empty()) return Undefined{std::string(name)};
    const auto less = [](const Value& a, const Value& b) { return compare(a, b) < 0; };
    return name == "min" ? *std::min_element(all.begin(), all.end(), less)
                         : *std::max_element(all.begin(), all.end(), less);
  }
  if (name == "abs") {
    int64_t i = 0;
    double d = 0;
    if (value.get<double>() == nullptr && to_integer(value, i) && i != INT64_MIN)
      return i < 0 ? -i : i;
    if (!to_real(value, d)) raise<DataError>("abs needs a number, not {}", type_name(value));
    return std::fabs(d);
  }
  if (name == "round") {
    double d = 0;
    if (!to_real(value, d)) raise<DataError>("round needs a number, not {}", type_name(value));
    const double scale =
        std::pow(10.0, static_cast<double>(std::clamp<int64_t>(
                           integer_of(arguments.find(0, "precision"), 0, name), -15, 15)));
    return std::nearbyint(d * scale) / scale;
  }
  raise<DataError>("the filter '{}' is not supported", name);
}

bool apply_test(std::string_view name, const Value& value, const Arguments& arguments) {
  const auto other = [&]() -> const Value& { return needed(arguments, 0, "other", name); };
  const bool is_bool = value.get<bool>() != nullptr;
  if (name == "defined") return !value.is_undefined();
  if (name == "undefined") return value.is_undefined();
  if (name == "none") return value.is_none();
  if (name == "string") return value.string() != nullptr;
  if (name == "boolean") return is_bool;
  if (name == "true") return is_bool && *value.get<bool>();
  if (name == "false") return is_bool && !*value.get<bool>();
  if (name == "integer") return value.get<int64_t>() != nullptr;
  if (name == "float") return value.get<double>() != nullptr;
  if (name == "number")
    return is_bool || value.get<int64_t>() != nullptr || value.get<double>() != nullptr;
  if (name == "mapping") return value.dict() != nullptr;
  if (name == "iterable" || name == "sequence")
    return value.list() != nullptr || value.dict() != nullptr || value.string() != nullptr;
  if (name == "callable") return value.get<Function>() != nullptr;
  if (name == "equalto" || name == "eq" || name == "sameas") return equal(value, other());
  if (name == "ne") return !equal(value, other());
  if (name == "lt" || name == "lessthan") return compare(value, other()) < 0;
  if (name == "le") return compare(value, other()) <= 0;
  if (name == "gt" || name == "greaterthan") return compare(value, other()) > 0;
  if (name == "ge") return compare(value, other()) >= 0;
  if (name == "in") {
    if (const std::string* text = other().string(); text != nullptr && value.string() != nullptr)
      return text->find(*value.string()) != std::string::npos;
    const List all = elements(other());
    return std::any_of(all.begin(), all.end(), [&](const Value& v) { return equal(v, value); });
  }
  if (name == "odd" || name == "even")
    return (integer_of(&value, 0, name) % 2 != 0) == (name == "odd");
  if (name == "divisibleby") {
    const int64_t by = integer_of(&other(), 0, name);
    if (by == 0 || by == -1) return by != 0;
    return integer_of(&value, 0, name) % by == 0;
  }
  raise<DataError>("the test '{}' is not supported", name);
}

bool has_method(const Value& value, std::string_view name) {
  const auto one_of = [name](auto... names) { return ((name == names) || ...); };
  if (value.string() != nullptr)
    return one_of("strip", "lstrip", "rstrip", "split", "upper", "lower", "title", "capitalize",
                  "startswith", "endswith", "replace", "join", "find", "index", "count",
                  "splitlines");
  if (value.dict() != nullptr) return one_of("items", "keys", "values", "get");
  if (value.list() != nullptr) return one_of("index", "count");
  return false;
}

Value call_method(const Value& self, std::string_view name, const Arguments& arguments) {
  if (const Dict* dict = self.dict()) {
    if (name == "items") return make_list(items_of(self));
    if (name == "keys") return make_list(elements(self));
    List values;
    if (name == "values") {
      for (const auto& [key, value] : *dict) values.push_back(value);
      return make_list(std::move(values));
    }
    const Value& key = needed(arguments, 0, "key", "get");
    const Value* found = key.string() == nullptr ? nullptr : find_member(*dict, *key.string());
    const Value* otherwise = arguments.find(1, "default");
    return found != nullptr ? *found : otherwise != nullptr ? *otherwise : Value(None{});
  }
  if (const List* list = self.list()) {
    const Value& wanted = needed(arguments, 0, "value", name);
    if (name == "count")
      return static_cast<int64_t>(std::count_if(list->begin(), list->end(),
                                                [&](const Value& v) { return equal(v, wanted); }));
    for (size_t i = 0; i < list->size(); ++i) {
      if (equal((*list)[i], wanted)) return static_cast<int64_t>(i);
    }
    throw DataError("index: the value is not in the list");
  }
  const std::string& text = string_of(self, name);
  const Value* first = arguments.find(0, "");
  if (name == "strip") return strip(text, first, true, true);
  if (name == "lstrip") return strip(text, first, true, false);
  if (name == "rstrip") return strip(text, first, false, true);
  if (name == "split")
    return make_list(
        split(text, arguments.find(0, "sep"), integer_of(arguments.find(1, "maxsplit"), -1, name)));
  if (name == "splitlines") {
    List lines = split(text, std::make_unique<Value>("\n").get(), -1);
    if (lines.back().string()->empty()) lines.pop_back();
    return make_list(std::move(lines));
  }
  if (name == "upper") return to_upper(text);
  if (name == "lower") return to_lower(text);
  if (name == "title") return title(text, true);
  if (name == "capitalize") return title(text, false);
  if (name == "startswith" || name == "endswith")
    return starts_or_ends(text, needed(arguments, 0, "prefix", name), name == "startswith");
  if (name == "replace") return apply_filter("replace", self, arguments);
  if (name == "join") return join(elements(needed(arguments, 0, "iterable", name)), text);
  const std::string& part = string_of(needed(arguments, 0, "sub", name), name);
  if (name == "count") {
    int64_t count = 0;
    if (part.empty()) return length(self) + 1;
    for (size_t at = text.find(part); at != std::string::npos;
         at = text.find(part, at + part.size()))
      ++count;
    return count;
  }
  const size_t at = text.find(part);
  if (name == "index" && at == std::string::npos)
    throw DataError("index: the text does not contain the other one");
  return at == std::string::npos ? Value(int64_t{-1}) : Value(length(Value(text.substr(0, at))));
}

} // namespace pentatron::data::tokenizer::chat
