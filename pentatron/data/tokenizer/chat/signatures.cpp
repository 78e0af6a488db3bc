#include "pentatron/data/tokenizer/chat/signatures.h"

#include <algorithm>
#include <array>
#include <set>
#include <span>
#include <string>

#include <fmt/ranges.h>

#include "pentatron/base/error.h"
#include "pentatron/base/text.h"

namespace pentatron::data::tokenizer::chat {

namespace {

/// Parameters in their order. "-": given by position alone; "*": any number by position; "**": any
/// by name.
struct Signature {
  std::string_view name, parameters;
};

constexpr Signature kFilters[] = {
    {"abs", ""},
    {"attr", "name"},
    {"batch", "linecount fill_with"},
    {"capitalize", ""},
    {"center", "width"},
    {"count", ""},
    {"d", "default_value boolean"},
    {"default", "default_value boolean"},
    {"dictsort", "case_sensitive by reverse"},
    {"e", ""},
    {"escape", ""},
    {"first", ""},
    {"float", "default"},
    {"forceescape", ""},
    {"format", "* **"},
    {"groupby", "attribute default case_sensitive"},
    {"indent", "width first blank"},
    {"int", "default base"},
    {"items", ""},
    {"join", "d attribute"},
    {"last", ""},
    {"length", ""},
    {"list", ""},
    {"lower", ""},
    {"map", "* **"},
    {"max", "case_sensitive attribute"},
    {"min", "case_sensitive attribute"},
    {"regex_replace", "pattern repl count"},
    {"reject", "* **"},
    {"rejectattr", "* **"},
    {"replace", "old new count"},
    {"reverse", ""},
    {"round", "precision method"},
    {"safe", ""},
    {"select", "* **"},
    {"selectattr", "* **"},
    {"slice", "slices fill_with"},
    {"sort", "reverse case_sensitive attribute"},
    {"string", ""},
    {"striptags", ""},
    {"sum", "attribute start"},
    {"title", ""},
    {"tojson", "ensure_ascii indent separators sort_keys"}, // of transformers
    {"trim", "chars"},
    {"truncate", "length killwords end leeway"},
    {"unique", "case_sensitive attribute"},
    {"upper", ""},
    {"urlencode", ""},
    {"wordcount", ""},
    {"wordwrap", "width break_long_words wrapstring break_on_hyphens"},
};
constexpr Signature kJsonOfJinja = {"tojson", "indent"};

constexpr Signature kTests[] = {
    {"!=", "-"},          {"<", "-"},
    {"<=", "-"},          {"==", "-"},
    {">", "-"},           {">=", "-"},
    {"boolean", ""},      {"callable", ""},
    {"defined", ""},      {"divisibleby", "num"},
    {"eq", "-"},          {"equalto", "-"},
    {"escaped", ""},      {"even", ""},
    {"false", ""},        {"filter", ""},
    {"float", ""},        {"ge", "-"},
    {"greaterthan", "-"}, {"gt", "-"},
    {"in", "seq"},        {"integer", ""},
    {"iterable", ""},     {"le", "-"},
    {"lessthan", "-"},    {"lower", ""},
    {"lt", "-"},          {"mapping", ""},
    {"ne", "-"},          {"none", ""},
    {"number", ""},       {"odd", ""},
    {"sameas", "other"},  {"sequence", ""},
    {"string", ""},       {"test", ""},
    {"true", ""},         {"undefined", ""},
    {"upper", ""},
};

constexpr Signature kMethods[] = {
    {"capitalize", ""},
    {"casefold", ""},
    {"center", "- -"},
    {"count", "-"},
    {"endswith", "-"},
    {"find", "-"},
    {"format", "* **"},
    {"get", "- -"},
    {"index", "-"},
    {"isalnum", ""},
    {"isalpha", ""},
    {"isascii", ""},
    {"isdecimal", ""},
    {"isdigit", ""},
    {"islower", ""},
    {"isnumeric", ""},
    {"isspace", ""},
    {"isupper", ""},
    {"items", ""},
    {"join", "-"},
    {"keys", ""},
    {"ljust", "- -"},
    {"lower", ""},
    {"lstrip", "-"},
    {"partition", "-"},
    {"removeprefix", "-"},
    {"removesuffix", "-"},
    {"replace", "- - -"},
    {"rfind", "-"},
    {"rindex", "-"},
    {"rjust", "- -"},
    {"rpartition", "-"},
    {"rsplit", "sep maxsplit"},
    {"rstrip", "-"},
    {"split", "sep maxsplit"},
    {"splitlines", "keepends"},
    {"startswith", "-"},
    {"strip", "-"},
    {"swapcase", ""},
    {"title", ""},
    {"upper", ""},
    {"values", ""},
    {"zfill", "-"},
};

constexpr Signature kFunctions[] = {
    {"dict", "- **"},           {"loop.changed", "*"}, {"loop.cycle", "*"},
    {"namespace", "- **"},      {"range", "- - -"},    {"raise_exception", "message"},
    {"strftime_now", "format"},
};

std::span<const Signature> table_of(Callable kind) {
  switch (kind) {
  case Callable::kFilter:
    return kFilters;
  case Callable::kTest:
    return kTests;
  case Callable::kMethod:
    return kMethods;
  case Callable::kFunction:
    break;
  }
  return kFunctions;
}

const Signature* find_signature(Callable kind, std::string_view name, bool html_json) {
  if (html_json && kind == Callable::kFilter && name == kJsonOfJinja.name) return &kJsonOfJinja;
  const std::span<const Signature> table = table_of(kind);
  const auto found = std::ranges::find(table, name, &Signature::name);
  return found == table.end() ? nullptr : &*found;
}

std::string_view kind_name(Callable kind) {
  constexpr std::array<std::string_view, 4> kNames = {"filter", "test", "method", "function"};
  return kNames[static_cast<size_t>(kind)];
}

} // namespace

bool is_callable(Callable kind, std::string_view name, bool html_json) {
  return find_signature(kind, name, html_json) != nullptr;
}

void check_arguments(Callable kind, std::string_view name, const Arguments& arguments,
                     bool html_json) {
  const Signature* signature = find_signature(kind, name, html_json);
  if (signature == nullptr) raise<DataError>("the {} '{}' is not supported", kind_name(kind), name);
  std::vector<std::string_view> places, names;
  bool any_places = false, any_names = false;
  for (const std::string_view one : pentatron::split(signature->parameters, ' ')) {
    any_places = any_places || one == "*";
    any_names = any_names || one == "**";
    if (one.empty() || one.starts_with('*')) continue;
    places.push_back(one);
    if (one != "-") names.push_back(one);
  }
  if (!any_places && arguments.values.size() > places.size())
    raise<DataError>("the {} '{}' takes {} arguments, not {}", kind_name(kind), name,
                     places.empty() ? "no" : fmt::format("at most {}", places.size()),
                     arguments.values.size());
  std::set<std::string_view> given;
  for (size_t i = 0; i < std::min(places.size(), arguments.values.size()); ++i)
    given.insert(places[i]);
  for (const auto& [key, value] : arguments.named) {
    const bool known = std::ranges::find(names, key) != names.end();
    if (!known && !any_names)
      raise<DataError>("the {} '{}' has no supported argument '{}'{}{}", kind_name(kind), name, key,
                       names.empty() ? "" : "\n  try: one of ", fmt::join(names, ", "));
    if (!given.insert(key).second)
      raise<DataError>("the {} '{}' gets the argument '{}' twice", kind_name(kind), name, key);
  }
}

} // namespace pentatron::data::tokenizer::chat
