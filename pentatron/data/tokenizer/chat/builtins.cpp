#include "pentatron/data/tokenizer/chat/builtins.h"

#include <algorithm>
#include <array>
#include <optional>

#include "pentatron/base/error.h"
#include "pentatron/data/regex.h"
#include "pentatron/data/tokenizer/chat/formats.h"
#include "pentatron/data/tokenizer/chat/list_filters.h"
#include "pentatron/data/tokenizer/chat/number_filters.h"
#include "pentatron/data/tokenizer/chat/signatures.h"
#include "pentatron/data/tokenizer/chat/text_functions.h"
#include "pentatron/data/tokenizer/unicode.h"

namespace pentatron::data::tokenizer::chat {

namespace {
constexpr int64_t kMaxRange = 100'000, kMaxPairs = 1000; // of dict(list)
} // namespace

Value member_of(const Value& value, std::string_view name, Access access) {
  if (value.is_undefined())
    raise<DataError>("'{}' is undefined, and has no member '{}'", value.get<Undefined>()->name,
                     name);
  const Dict* dict = value.dict();
  const Value* found = dict == nullptr ? nullptr : find_member(*dict, std::string(name));
  const bool method = !value.is_namespace && has_method(value, name);
  if (found != nullptr && !(method && access == Access::kDot)) return *found;
  if (method) return make_method(std::string(name), value);
  return Undefined{std::string(name)};
}

Value element_of(const Value& v, int64_t i) {
  if (v.is_undefined()) raise<DataError>("'{}' is undefined", v.get<Undefined>()->name);
  if (const Dict* dict = v.dict()) {
    const Value* found = find_member(*dict, i);
    return found != nullptr ? *found : Value(Undefined{std::to_string(i)});
  }
  if (v.list() == nullptr && v.string() == nullptr) return Undefined{std::to_string(i)};
  const int64_t count = length(v);
  if (i < 0) i += count;
  if (i < 0 || i >= count) return Undefined{std::to_string(i)};
  if (const List* list = v.list()) return (*list)[static_cast<size_t>(i)];
  const std::string& text = *v.string();
  size_t at = 0;
  for (; i > 0; --i) at += utf8_length(text[at]);
  return text.substr(at, utf8_length(text[at]));
}

namespace {

bool is_set(const Value* v) {
  return v != nullptr && is_true(*v);
}

/// tojson of transformers.
std::string chat_json(const Value& value, const Arguments& arguments) {
  JsonStyle style;
  style.ascii = is_set(arguments.find(0, "ensure_ascii"));
  style.indent = static_cast<int>(
      std::clamp<int64_t>(integer_of(arguments.find(1, "indent"), -1, "tojson"), -1, 16));
  if (style.indent >= 0) style.item = ",";
  style.sort_keys = is_set(arguments.find(3, "sort_keys"));
  if (const Value* separators = arguments.find(2, "separators");
      separators != nullptr && !separators->is_none()) {
    const List* two = separators->list();
    if (two == nullptr || two->size() != 2)
      throw DataError("tojson needs separators of two strings");
    style.item = string_of((*two)[0], "tojson");
    style.key = string_of((*two)[1], "tojson");
  }
  return to_json(value, style);
}

/// tojson of Jinja, which can stand in HTML.
Value html_json_of(const Value& value, const Arguments& arguments) {
  JsonStyle style{.sort_keys = true, .ascii = true};
  style.indent = static_cast<int>(
      std::clamp<int64_t>(integer_of(arguments.find(0, "indent"), -1, "tojson"), -1, 16));
  if (style.indent >= 0) style.item = ",";
  std::string out;
  for (const char c : to_json(value, style)) {
    if (std::string_view("<>&'").find(c) != std::string_view::npos)
      out += fmt::format("\\u{:04x}", static_cast<unsigned char>(c));
    else
      out += c;
  }
  check_length(out);
  return make_markup(std::move(out));
}

std::string format_filter(const std::string& text, const Arguments& arguments) {
  if (!arguments.values.empty() && !arguments.named.empty())
    throw DataError("format takes values by position or by name, not both");
  return percent_format(text, arguments);
}

/// A filter that does not know of Markup.
Value filtered(std::string_view name, const Value& value, const Arguments& arguments,
               bool html_json) {
  if (std::optional<Value> made = apply_list_filter(name, value, arguments, html_json))
    return *std::move(made);
  if (name == "default" || name == "d") {
    const Value* otherwise = arguments.find(0, "default_value");
    if (value.is_undefined() || (is_set(arguments.find(1, "boolean")) && !is_true(value)))
      return otherwise == nullptr ? Value("") : *otherwise;
    return value;
  }
  if (name == "trim") return strip(to_text(value), arguments.find(0, "chars"), true, true);
  if (name == "upper") return to_upper(to_text(value));
  if (name == "lower") return to_lower_words(to_text(value));
  if (name == "capitalize") return title(to_text(value), WordStart::kText);
  if (name == "title") return title(to_text(value), WordStart::kBlank);
  if (name == "length" || name == "count") return length(value);
  if (name == "string") return to_text(value);
  if (name == "int") return to_int(value, arguments);
  if (name == "float") return to_float(value, arguments);
  if (name == "round") return rounded(value, arguments);
  if (name == "abs") return absolute(value);
  if (name == "tojson")
    return html_json ? html_json_of(value, arguments) : Value(chat_json(value, arguments));
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
  if (name == "format") return format_filter(to_text(value), arguments);
  if (name == "wordwrap") return word_wrapped(to_text(value), arguments);
  if (name == "striptags") return without_markup(to_text(value));
  if (name == "center") {
    const Value* width = arguments.find(0, "width");
    return call_string_method(
        to_text(value), name,
        {.values = {width == nullptr ? Value(int64_t{80}) : *width}, .named = {}});
  }
  if (name == "wordcount") return count_words(to_text(value));
  if (name == "truncate") return truncated(value, arguments);
  if (name == "urlencode") return url_encoded(value);
  if (name == "attr") { // no element of a dictionary
    const std::string& member = string_of(needed(arguments, 0, "name", name), name);
    if (value.is_namespace || has_method(value, member))
      return member_of(value, member, Access::kDot);
    return Undefined{member};
  }
  if (name == "indent") return indent(to_text(value), arguments);
  raise<DataError>("the filter '{}' is not supported", name);
}

/// Filters of a string that keep it Markup.
bool keeps_markup(std::string_view name) {
  constexpr std::string_view kNames[] = {"capitalize", "format", "indent", "lower",
                                         "reverse",    "string", "trim",   "upper"};
  return std::ranges::find(kNames, name) != std::end(kNames);
}

/// A text, or the texts of a list, as Markup.
Value all_markup(const Value& v) {
  if (v.string() != nullptr) return make_markup(*v.string());
  const List* list = v.list();
  if (list == nullptr) return v;
  List out;
  for (const Value& item : *list) out.push_back(all_markup(item));
  return v.is_tuple ? make_tuple(std::move(out)) : make_list(std::move(out));
}

/// A method of Markup: arguments that become part of it are escaped.
Value call_markup_method(const Value& self, std::string_view name, Arguments arguments) {
  if (name == "format") escape_arguments(arguments);
  if (name == "replace") {
    const std::string to = markup_text(needed(arguments, 1, "new", name));
    if (arguments.values.size() > 1)
      arguments.values[1] = to;
    else
      for (auto& [key, value] : arguments.named)
        if (key == "new") value = to;
  }
  if (name == "join") {
    List parts;
    for (const Value& part : elements(needed(arguments, 0, "iterable", name)))
      parts.emplace_back(markup_text(part));
    arguments.values = {make_list(std::move(parts))};
  }
  return all_markup(call_string_method(*self.string(), name, arguments));
}

} // namespace

Value apply_filter(std::string_view name, const Value& value, const Arguments& arguments,
                   bool html_json) {
  check_arguments(Callable::kFilter, name, arguments, html_json);
  if (name == "safe") return make_markup(to_text(value));
  if (name == "escape" || name == "e") return make_markup(markup_text(value));
  if (name == "forceescape") return make_markup(escaped(to_text(value)));
  if (!value.is_markup || !keeps_markup(name)) return filtered(name, value, arguments, html_json);
  Arguments given = arguments;
  if (name == "format") escape_arguments(given);
  return make_markup(to_text(filtered(name, value, given, html_json)));
}

bool apply_test(std::string_view name, const Value& value, const Arguments& arguments) {
  check_arguments(Callable::kTest, name, arguments, false);
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
  if (name == "escaped") return value.is_markup;
  if (name == "filter" || name == "test")
    return is_callable(name == "filter" ? Callable::kFilter : Callable::kTest,
                       string_of(value, name), false);
  if (name == "equalto" || name == "eq" || name == "==") return equal(value, other());
  if (name == "sameas") return value.data.index() == other().data.index() && equal(value, other());
  if (name == "ne" || name == "!=") return !equal(value, other());
  if (name == "lt" || name == "lessthan" || name == "<") return compare(value, other()) < 0;
  if (name == "le" || name == "<=") return compare(value, other()) <= 0;
  if (name == "gt" || name == "greaterthan" || name == ">") return compare(value, other()) > 0;
  if (name == "ge" || name == ">=") return compare(value, other()) >= 0;
  if (name == "in") {
    if (const std::string* text = needed(arguments, 0, "seq", name).string();
        text != nullptr && value.string() != nullptr)
      return text->find(*value.string()) != std::string::npos;
    const List all = elements(needed(arguments, 0, "seq", name));
    return std::any_of(all.begin(), all.end(), [&](const Value& v) { return equal(v, value); });
  }
  if (name == "lower" || name == "upper")
    return *call_string_method(to_text(value), name == "lower" ? "islower" : "isupper", {})
                .get<bool>();
  if (name == "odd" || name == "even")
    return (integer_of(&value, 0, name) % 2 != 0) == (name == "odd");
  if (name == "divisibleby") {
    const int64_t by = integer_of(&needed(arguments, 0, "num", name), 0, name);
    if (by == 0 || by == -1) return by != 0;
    return integer_of(&value, 0, name) % by == 0;
  }
  raise<DataError>("the test '{}' is not supported", name);
}

bool has_method(const Value& value, std::string_view name) {
  const auto one_of = [name](auto... names) { return ((name == names) || ...); };
  if (value.string() != nullptr) return has_string_method(name);
  if (value.dict() != nullptr) return one_of("items", "keys", "values", "get");
  if (value.list() != nullptr) return one_of("index", "count");
  return false;
}

Value call_method(const Value& self, std::string_view name, const Arguments& arguments) {
  check_arguments(Callable::kMethod, name, arguments, false);
  if (const Dict* dict = self.dict()) {
    if (name == "items") return make_list(items_of(self));
    if (name == "keys") return make_list(elements(self));
    List values;
    if (name == "values") {
      for (const auto& [key, value] : *dict) values.push_back(value);
      return make_list(std::move(values));
    }
    const Value* found = find_member(*dict, needed(arguments, 0, "key", "get"));
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
  if (self.is_markup) return call_markup_method(self, name, arguments);
  return call_string_method(string_of(self, name), name, arguments);
}

namespace {

List range(const List& given) {
  int64_t parts[3] = {0, 0, 1};
  const size_t n = given.size();
  if (n < 1) throw DataError("range needs 1 to 3 integers");
  for (size_t i = 0; i < n; ++i) {
    if (!to_integer(given[i], parts[n == 1 ? 1 : i]))
      raise<DataError>("range needs integers, not {}", type_name(given[i]));
  }
  const auto [from, to, step] = parts;
  List list;
  if (step == 0) throw DataError("range has a step of 0");
  for (int64_t i = from; step > 0 ? i < to : i > to;) {
    list.emplace_back(i);
    if (std::ssize(list) > kMaxRange)
      raise<DataError>("range makes a list that is too long: more than {} integers", kMaxRange);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return list;
}

/// dict(a dictionary or pairs, key=value).
Dict dict_of(const Arguments& given) {
  Dict out;
  const auto set = [&](const Value& key, const Value& value) {
    const auto same = std::ranges::find_if(out, [&](const auto& e) { return equal(e.first, key); });
    if (same != out.end())
      same->second = value;
    else
      out.emplace_back(key, value);
  };
  if (!given.values.empty()) {
    const Value& from = given.values[0];
    if (from.dict() != nullptr) out = *from.dict();
    for (const Value& pair : from.dict() != nullptr ? List{} : elements(from)) {
      if (std::ssize(out) > kMaxPairs) throw DataError("dict gets too many pairs");
      const List two = elements(pair);
      if (two.size() != 2) throw DataError("dict needs pairs");
      check_dictionary_key(two[0]);
      set(two[0], two[1]);
    }
  }
  for (const auto& [name, value] : given.named) set(name, value);
  return out;
}

} // namespace

void check_dictionary_key(const Value& key) {
  if (key.list() != nullptr || key.dict() != nullptr || key.is_undefined())
    raise<DataError>("it makes a dictionary whose key is {}", type_name(key));
}

Value call_function(std::string_view name, const Arguments& arguments) {
  check_arguments(Callable::kFunction, name, arguments, false);
  if (name == "range") return make_list(range(arguments.values));
  if (name == "raise_exception") {
    const Value* message = arguments.find(0, "message");
    raise<DataError>("{}", message == nullptr ? "exception" : to_text(*message));
  }
  Value made = make_dict(dict_of(arguments));
  made.is_namespace = name == "namespace";
  return made;
}

} // namespace pentatron::data::tokenizer::chat
