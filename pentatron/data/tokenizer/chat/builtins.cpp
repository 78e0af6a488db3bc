#include "pentatron/data/tokenizer/chat/builtins.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "pentatron/base/error.h"
#include "pentatron/data/regex.h"
#include "pentatron/data/tokenizer/chat/text_functions.h"
#include "pentatron/data/tokenizer/unicode.h"

namespace pentatron::data::tokenizer::chat {

namespace {

List items_of(const Value& v) {
  const Dict* dict = v.dict();
  if (dict == nullptr) raise<DataError>("items needs a dictionary, not {}", type_name(v));
  List out;
  for (const auto& [key, value] : *dict) out.push_back(make_tuple({key, value}));
  return out;
}

Value path_of(const Value& v, const std::string& path) {
  Value out = v;
  const Value dot(".");
  for (const Value& part : split(path, &dot, -1))
    out = member_of(out, *part.string(), Access::kBrackets);
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
  if (!is_true(v)) return out; // also None, as in Jinja
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
  if (!is_true(v)) return make_list(std::move(out));
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

/// Strings are put in order without regard to case.
Value folded(const Value& v) {
  return v.string() != nullptr ? Value(to_lower(*v.string())) : v;
}

List sorted(List items, const Arguments& arguments) {
  const Value* reverse = arguments.find(0, "reverse");
  const Value* attribute = arguments.find(2, "attribute");
  const auto key = [&](const Value& v) {
    const Value looked_at = attribute == nullptr ? v : path_of(v, string_of(*attribute, "sort"));
    return folded(looked_at);
  };
  std::stable_sort(items.begin(), items.end(),
                   [&](const Value& a, const Value& b) { return compare(key(a), key(b)) < 0; });
  if (reverse != nullptr && is_true(*reverse)) std::reverse(items.begin(), items.end());
  return items;
}

/// Lists of so many elements; the last is filled up with what is given for it.
List batched(const List& items, const Arguments& arguments) {
  const int64_t size = integer_of(&needed(arguments, 0, "linecount", "batch"), 0, "batch");
  if (size < 1 || size > 100'000) raise<DataError>("batch of {} elements", size);
  const Value* fill = arguments.find(1, "fill_with");
  List out, now;
  for (const Value& item : items) {
    now.push_back(item);
    if (std::ssize(now) == size) out.push_back(make_list(std::exchange(now, {})));
  }
  if (now.empty()) return out;
  while (fill != nullptr && !fill->is_none() && std::ssize(now) < size) now.push_back(*fill);
  out.push_back(make_list(std::move(now)));
  return out;
}

/// Pairs of a value of the attribute and the elements that have it, in the order of the values.
List grouped(List items, const Arguments& arguments) {
  const std::string path = string_of(needed(arguments, 0, "attribute", "groupby"), "groupby");
  const Value* otherwise = arguments.find(1, "default");
  const auto key = [&](const Value& item) {
    Value found = path_of(item, path);
    return found.is_undefined() && otherwise != nullptr ? *otherwise : found;
  };
  std::stable_sort(items.begin(), items.end(), [&](const Value& a, const Value& b) {
    return compare(folded(key(a)), folded(key(b))) < 0;
  });
  std::vector<std::pair<Value, List>> groups;
  for (Value& item : items) {
    Value one = key(item);
    if (groups.empty() || !equal(folded(groups.back().first), folded(one)))
      groups.emplace_back(std::move(one), List{});
    groups.back().second.push_back(std::move(item));
  }
  List out;
  for (auto& [value, members] : groups)
    out.push_back(make_tuple({std::move(value), make_list(std::move(members))}));
  return out;
}

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

namespace {

/// A filter that does not know of Markup.
Value filtered(std::string_view name, const Value& value, const Arguments& arguments) {
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
  if (name == "capitalize") return title(to_text(value), WordStart::kText);
  if (name == "title") return title(to_text(value), WordStart::kBlank);
  if (name == "length" || name == "count") return length(value);
  if (name == "string") return to_text(value);
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
  if (name == "format") return percent_format(to_text(value), arguments);
  if (name == "wordcount") return count_words(to_text(value));
  if (name == "truncate") return truncated(value, arguments);
  if (name == "urlencode") return url_encoded(value);
  if (name == "attr") { // no element of a dictionary
    const std::string& member = string_of(needed(arguments, 0, "name", name), name);
    if (value.is_namespace || has_method(value, member))
      return member_of(value, member, Access::kDot);
    return Undefined{member};
  }
  if (name == "batch") return make_list(batched(elements(value), arguments));
  if (name == "groupby") return make_list(grouped(elements(value), arguments));
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
      return compare(folded(a.list()->front()), folded(b.list()->front())) < 0;
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

Value apply_filter(std::string_view name, const Value& value, const Arguments& arguments) {
  if (name == "safe") return make_markup(to_text(value));
  if (name == "escape" || name == "e") return make_markup(markup_text(value));
  if (name == "forceescape") return make_markup(escaped(to_text(value)));
  if (!value.is_markup || !keeps_markup(name)) return filtered(name, value, arguments);
  Arguments given = arguments;
  if (name == "format") escape_arguments(given);
  return make_markup(to_text(filtered(name, value, given)));
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
  if (name == "lower" || name == "upper")
    return *call_string_method(to_text(value), name == "lower" ? "islower" : "isupper", {})
                .get<bool>();
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
  if (value.string() != nullptr) return has_string_method(name);
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

} // namespace pentatron::data::tokenizer::chat
