#include "pentatron/data/tokenizer/chat/list_filters.h"

#include <algorithm>
#include <charconv>

#include "pentatron/base/error.h"
#include "pentatron/data/tokenizer/chat/builtins.h"
#include "pentatron/data/tokenizer/chat/number_filters.h"
#include "pentatron/data/tokenizer/unicode.h"

namespace pentatron::data::tokenizer::chat {

namespace {

constexpr int64_t kMaxParts = 100'000; ///< of batch and slice

/// The attribute "a.b.0" or 0; `otherwise` takes the place of what is undefined on the way.
Value attribute_of(const Value& v, const Value& path, const Value* otherwise) {
  Value out = v;
  const auto take = [&](Value found) {
    const bool replaced = found.is_undefined() && otherwise != nullptr && !otherwise->is_none();
    out = replaced ? *otherwise : std::move(found);
  };
  int64_t index = 0;
  if (to_integer(path, index)) {
    take(element_of(v, index));
    return out;
  }
  const Value dot(".");
  for (const Value& one : split(string_of(path, "attribute"), &dot, -1)) {
    const std::string& part = *one.string();
    const char* const last = part.data() + part.size();
    const bool number = !part.empty() &&
                        part.find_first_not_of("0123456789") == std::string::npos &&
                        std::from_chars(part.data(), last, index).ec == std::errc();
    take(number ? element_of(out, index) : member_of(out, part, Access::kBrackets));
  }
  return out;
}

bool is_given(const Value* v) {
  return v != nullptr && !v->is_none();
}
bool is_set(const Arguments& arguments, size_t position, std::string_view name) {
  const Value* v = arguments.find(position, name);
  return v != nullptr && is_true(*v);
}

/// Strings are put in order without regard to case, unless that is asked for.
Value folded(const Value& v, bool case_sensitive) {
  return v.string() != nullptr && !case_sensitive ? Value(to_lower(*v.string())) : v;
}

List selected(const Value& v, const Arguments& arguments, bool attribute, bool keep) {
  List out;
  size_t at = 0;
  const Value* path = nullptr;
  if (attribute) path = &needed(arguments, at++, "attribute", "selectattr");
  const Value* test = arguments.find(at, "");
  Arguments rest;
  rest.named = arguments.named;
  for (size_t i = at + 1; i < arguments.values.size(); ++i)
    rest.values.push_back(arguments.values[i]);
  if (test == nullptr && !rest.named.empty())
    raise<DataError>("select and reject have no argument '{}' without a test", rest.named[0].first);
  if (!is_true(v)) return out; // also None, as in Jinja
  for (const Value& item : elements(v)) {
    const Value looked_at = path != nullptr ? attribute_of(item, *path, nullptr) : item;
    const bool holds = test == nullptr ? is_true(looked_at)
                                       : apply_test(string_of(*test, "select"), looked_at, rest);
    if (holds == keep) out.push_back(item);
  }
  return out;
}

List mapped(const Value& v, const Arguments& arguments, bool html_json) {
  List out;
  if (arguments.values.empty()) {
    const Value& path = needed(arguments, 0, "attribute", "map");
    const Value* otherwise = arguments.find(0, "default");
    for (const auto& [key, value] : arguments.named)
      if (key != "attribute" && key != "default")
        raise<DataError>("map has no argument '{}'\n  try: one of attribute, default", key);
    if (!is_true(v)) return out;
    for (const Value& item : elements(v)) out.push_back(attribute_of(item, path, otherwise));
    return out;
  }
  constexpr size_t kMostNested = 8;
  size_t nested = 0;
  while (nested < arguments.values.size() && arguments.values[nested].string() != nullptr &&
         *arguments.values[nested].string() == "map")
    ++nested;
  if (nested > kMostNested) raise<DataError>("map maps map more than {} times", kMostNested);
  Arguments rest;
  rest.named = arguments.named;
  rest.values.assign(arguments.values.begin() + 1, arguments.values.end());
  if (!is_true(v)) return out;
  size_t bytes = 0;
  for (const Value& item : elements(v)) {
    out.push_back(apply_filter(string_of(arguments.values[0], "map"), item, rest, html_json));
    if (const std::string* text = out.back().string(); text != nullptr) bytes += text->size();
    if (bytes > kMaxValueBytes)
      raise<DataError>("map makes more than {} bytes of text", kMaxValueBytes);
  }
  return out;
}

/// The items in the order of their keys. As in Python, equal ones keep their order.
List in_order(List items, std::vector<Value> keys, bool reverse) {
  std::vector<size_t> order(items.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::ranges::stable_sort(order, [&](size_t a, size_t b) {
    return reverse ? compare(keys[b], keys[a]) < 0 : compare(keys[a], keys[b]) < 0;
  });
  List out;
  for (const size_t i : order) out.push_back(std::move(items[i]));
  return out;
}

List sorted(List items, const Arguments& arguments) {
  const bool case_sensitive = is_set(arguments, 1, "case_sensitive");
  const Value* attribute = arguments.find(2, "attribute");
  List paths; // "a,b" are several
  const Value comma(",");
  if (is_given(attribute))
    paths =
        attribute->string() != nullptr ? split(*attribute->string(), &comma, -1) : List{*attribute};
  std::vector<Value> keys;
  for (const Value& item : items) {
    List key;
    if (paths.empty()) key.push_back(folded(item, case_sensitive));
    for (const Value& path : paths)
      key.push_back(folded(attribute_of(item, path, nullptr), case_sensitive));
    keys.push_back(make_list(std::move(key)));
  }
  return in_order(std::move(items), std::move(keys), is_set(arguments, 0, "reverse"));
}

List sorted_pairs(const Value& v, const Arguments& arguments) {
  List items = items_of(v);
  const Value* by = arguments.find(1, "by");
  const std::string of = by == nullptr ? "key" : string_of(*by, "dictsort");
  if (of != "key" && of != "value")
    raise<DataError>("dictsort has by='{}'\n  try: by='key' or by='value'", of);
  std::vector<Value> keys;
  for (const Value& item : items)
    keys.push_back(
        folded((*item.list())[of == "key" ? 0 : 1], is_set(arguments, 0, "case_sensitive")));
  return in_order(std::move(items), std::move(keys), is_set(arguments, 2, "reverse"));
}

/// What min, max and unique look at.
std::vector<Value> keys_of(const List& items, const Arguments& arguments) {
  const Value* attribute = arguments.find(1, "attribute");
  std::vector<Value> keys;
  for (const Value& item : items)
    keys.push_back(folded(is_given(attribute) ? attribute_of(item, *attribute, nullptr) : item,
                          is_set(arguments, 0, "case_sensitive")));
  return keys;
}

Value extreme(const List& items, const Arguments& arguments, bool least) {
  if (items.empty()) return Undefined{least ? "min" : "max"};
  const std::vector<Value> keys = keys_of(items, arguments);
  const auto less = [](const Value& a, const Value& b) { return compare(a, b) < 0; };
  const auto found =
      least ? std::ranges::min_element(keys, less) : std::ranges::max_element(keys, less);
  return items[static_cast<size_t>(found - keys.begin())];
}

List without_copies(const List& items, const Arguments& arguments) {
  const std::vector<Value> keys = keys_of(items, arguments);
  std::vector<const Value*> seen;
  List out;
  for (size_t i = 0; i < items.size(); ++i) {
    if (out.size() > 1000) throw DataError("unique has more than 1000 elements");
    if (std::ranges::any_of(seen, [&](const Value* one) { return equal(*one, keys[i]); })) continue;
    seen.push_back(&keys[i]);
    out.push_back(items[i]);
  }
  return out;
}

/// Lists of so many elements; the last is filled up with what is given for it.
List batched(const List& items, const Arguments& arguments) {
  const int64_t size = integer_of(&needed(arguments, 0, "linecount", "batch"), 0, "batch");
  if (size < 1 || size > kMaxParts) raise<DataError>("batch of {} elements", size);
  const Value* fill = arguments.find(1, "fill_with");
  List out, now;
  for (const Value& item : items) {
    now.push_back(item);
    if (std::ssize(now) == size) out.push_back(make_list(std::exchange(now, {})));
  }
  if (now.empty()) return out;
  while (is_given(fill) && std::ssize(now) < size) now.push_back(*fill);
  out.push_back(make_list(std::move(now)));
  return out;
}

/// So many lists; the shorter ones, which are the last, are filled up with what is given for them.
List sliced(const List& items, const Arguments& arguments) {
  const int64_t count = integer_of(&needed(arguments, 0, "slices", "slice"), 0, "slice");
  if (count < 1 || count > kMaxParts) raise<DataError>("slice of {} lists", count);
  const Value* fill = arguments.find(1, "fill_with");
  const int64_t size = std::ssize(items) / count, longer = std::ssize(items) % count;
  List out;
  auto next = items.begin();
  for (int64_t i = 0; i < count; ++i) {
    const auto end = next + (size + (i < longer ? 1 : 0));
    List now(next, end);
    next = end;
    if (i >= longer && is_given(fill)) now.push_back(*fill);
    out.push_back(make_list(std::move(now)));
  }
  return out;
}

/// Pairs of a value of the attribute and the elements that have it, in the order of the values.
List grouped(List items, const Arguments& arguments) {
  const Value& path = needed(arguments, 0, "attribute", "groupby");
  const Value* otherwise = arguments.find(1, "default");
  const bool case_sensitive = is_set(arguments, 2, "case_sensitive");
  const auto key = [&](const Value& item) { return attribute_of(item, path, otherwise); };
  std::vector<Value> keys;
  for (const Value& item : items) keys.push_back(folded(key(item), case_sensitive));
  items = in_order(std::move(items), std::move(keys), false);
  std::vector<std::pair<Value, List>> groups;
  for (Value& item : items) {
    Value one = key(item);
    if (groups.empty() ||
        !equal(folded(groups.back().first, case_sensitive), folded(one, case_sensitive)))
      groups.emplace_back(std::move(one), List{});
    groups.back().second.push_back(std::move(item));
  }
  List out;
  for (auto& [value, members] : groups)
    out.push_back(make_tuple({std::move(value), make_list(std::move(members))}));
  return out;
}

Value summed(const Value& v, const Arguments& arguments) {
  const Value* attribute = arguments.find(0, "attribute");
  const Value* start = arguments.find(1, "start");
  List items = elements(v);
  if (is_given(attribute))
    for (Value& item : items) item = attribute_of(item, *attribute, nullptr);
  return sum(items, start == nullptr ? Value(int64_t{0}) : *start);
}

std::string joined(const Value& v, const Arguments& arguments) {
  const Value* separator = arguments.find(0, "d");
  const Value* attribute = arguments.find(1, "attribute");
  List items = elements(v);
  if (is_given(attribute))
    for (Value& item : items) item = attribute_of(item, *attribute, nullptr);
  return join(items, separator == nullptr ? "" : string_of(*separator, "join"));
}

} // namespace

List items_of(const Value& v) {
  const Dict* dict = v.dict();
  if (dict == nullptr) raise<DataError>("items needs a dictionary, not {}", type_name(v));
  List out;
  for (const auto& [key, value] : *dict) out.push_back(make_tuple({key, value}));
  return out;
}

std::optional<Value> apply_list_filter(std::string_view name, const Value& value,
                                       const Arguments& arguments, bool html_json) {
  if (name == "list") return make_list(elements(value));
  if (name == "items") return make_list(value.is_undefined() ? List{} : items_of(value));
  if (name == "join") return joined(value, arguments);
  if (name == "first" || name == "last") {
    const List all = elements(value);
    if (all.empty()) return Undefined{std::string(name)};
    return name == "first" ? all.front() : all.back();
  }
  if (name == "reverse") {
    List all = elements(value);
    std::ranges::reverse(all);
    return value.string() != nullptr ? Value(join(all, "")) : make_list(std::move(all));
  }
  if (name == "batch") return make_list(batched(elements(value), arguments));
  if (name == "slice") return make_list(sliced(elements(value), arguments));
  if (name == "groupby") return make_list(grouped(elements(value), arguments));
  if (name == "map") return make_list(mapped(value, arguments, html_json));
  if (name == "select" || name == "reject")
    return make_list(selected(value, arguments, false, name == "select"));
  if (name == "selectattr" || name == "rejectattr")
    return make_list(selected(value, arguments, true, name == "selectattr"));
  if (name == "sort") return make_list(sorted(elements(value), arguments));
  if (name == "dictsort") return make_list(sorted_pairs(value, arguments));
  if (name == "unique") return make_list(without_copies(elements(value), arguments));
  if (name == "sum") return summed(value, arguments);
  if (name == "min" || name == "max") return extreme(elements(value), arguments, name == "min");
  return std::nullopt;
}

} // namespace pentatron::data::tokenizer::chat
