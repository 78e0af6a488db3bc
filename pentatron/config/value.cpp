#include "pentatron/config/value.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>
#include <sstream>

#include <fmt/ranges.h>

#include "pentatron/base/error.h"
#include "pentatron/base/nearest.h"
#include "pentatron/base/text.h"

namespace pentatron::config {

namespace {

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

/// Removes underscores that stand between digits: 1_000.
std::string without_separators(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool separator = text[i] == '_' && i > 0 && i + 1 < text.size() &&
                           is_digit(text[i - 1]) && is_digit(text[i + 1]);
    if (!separator) out += text[i];
  }
  return out;
}

/// A finite decimal number that fills the whole text.
std::optional<double> decimal(std::string_view text) {
  const size_t begin = text.starts_with('+') || text.starts_with('-') ? 1 : 0;
  if (begin == text.size() || !(is_digit(text[begin]) || text[begin] == '.')) return std::nullopt;
  if (text.starts_with('+')) text.remove_prefix(1);
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (end != text.data() + text.size() || error != std::errc() || !std::isfinite(value)) {
    return std::nullopt;
  }
  return value;
}

Parsed failed(std::string cause, std::string suggestion = {}) {
  return {std::nullopt, std::move(cause), std::move(suggestion)};
}

Parsed out_of_range(int64_t nearest) {
  return {std::nullopt, "is out of range", fmt::to_string(nearest), true};
}

/// 0x10, 0o17 and 0b11 in decimal.
std::optional<int64_t> prefixed_integer(std::string_view text) {
  if (text.size() < 3 || text[0] != '0') return std::nullopt;
  const int base = text[1] == 'x' || text[1] == 'X'   ? 16
                   : text[1] == 'o' || text[1] == 'O' ? 8
                   : text[1] == 'b' || text[1] == 'B' ? 2
                                                      : 0;
  int64_t value = 0;
  if (base == 0) return std::nullopt;
  const auto [end, error] =
      std::from_chars(text.data() + 2, text.data() + text.size(), value, base);
  if (end != text.data() + text.size() || error != std::errc()) return std::nullopt;
  return value;
}

Parsed parse_integer(const TypeInfo& type, const Node& node) {
  const std::string text = without_separators(node.text);
  if (const auto value = prefixed_integer(text)) {
    return failed("is not a decimal number", fmt::to_string(*value));
  }
  std::string_view digits = text;
  const bool negative = digits.starts_with('-');
  if (negative || digits.starts_with('+')) digits.remove_prefix(1);
  int64_t value = 0;
  if (!digits.empty() && std::ranges::all_of(digits, is_digit)) {
    if (digits.size() > 1 && digits[0] == '0') {
      const size_t first = std::min(digits.find_first_not_of('0'), digits.size() - 1);
      return failed("begins with 0, which some YAML parsers read as octal",
                    fmt::format("{}{}", negative ? "-" : "", digits.substr(first)));
    }
    const char* begin = text.data() + (text[0] == '+' ? 1 : 0);
    const auto [end, error] = std::from_chars(begin, text.data() + text.size(), value);
    if (error != std::errc()) {
      return out_of_range(negative ? type.lowest : type.highest);
    }
  } else {
    const auto number = decimal(text);
    if (!number) return failed("is not an integer");
    if (std::abs(*number) >= 0x1p63) return out_of_range(negative ? type.lowest : type.highest);
    if (std::abs(*number) > 0x1p53)
      return failed("is too large for this form, which is rounded", fmt::format("{:.0f}", *number));
    value = std::llround(*number);
    if (static_cast<double>(value) != *number) {
      return failed("is not an integer", fmt::to_string(value));
    }
  }
  const int64_t nearest = std::clamp(value, type.lowest, type.highest);
  if (nearest != value) return out_of_range(nearest);
  return {Value{value}, {}, {}};
}

Parsed parse_number(const Node& node) {
  std::string text = without_separators(node.text);
  std::string lower = text;
  std::ranges::transform(lower, lower.begin(),
                         [](char c) { return c >= 'A' && c <= 'Z' ? c + 32 : c; });
  const bool negative = lower.starts_with('-');
  const std::string_view magnitude =
      std::string_view(lower).substr(negative || lower.starts_with('+'));
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (magnitude == ".inf" || magnitude == "inf" || magnitude == "infinity") {
    return {Value{negative ? -kInfinity : kInfinity}, {}, {}};
  }
  if (magnitude == ".nan" || magnitude == "nan") return failed("is not a number");
  if (const auto value = decimal(text)) return {Value{*value}, {}, {}};
  return failed("is not a number");
}

Parsed parse_bool(const Node& node) {
  const std::string& text = node.text;
  if (text == "true" || text == "True" || text == "TRUE") return {Value{true}, {}, {}};
  if (text == "false" || text == "False" || text == "FALSE") return {Value{false}, {}, {}};
  for (const char* word : {"yes", "Yes", "YES", "on", "On", "ON", "1", "y", "t", "T"}) {
    if (text == word) return failed("is not true or false", "true");
  }
  for (const char* word : {"no", "No", "NO", "off", "Off", "OFF", "0", "n", "f", "F"}) {
    if (text == word) return failed("is not true or false", "false");
  }
  return failed("is not true or false");
}

Parsed parse_enum(const TypeInfo& type, const Node& node) {
  std::vector<std::string> names;
  for (const NamedValue& named : type.names) {
    if (named.name == node.text) return {Value{named.value}, {}, {}};
    names.emplace_back(named.name);
  }
  return failed(fmt::format("is not {}", type_name(type)), nearest(node.text, names));
}

/// What a list in place of a string may have meant: `path: [0.3, a, 0.7, b]`.
std::string words_of(const TypeInfo& type, const Node& node) {
  std::string words;
  if (type.kind != Kind::kString || node.type != Node::Type::kList) return words;
  for (const Node& item : node.items) {
    if (item.type != Node::Type::kScalar) return {};
    words += (words.empty() ? "" : " ") + item.text;
  }
  return format_value(type, Value{words});
}

Parsed parse_list(const TypeInfo& type, const Node& node) {
  if (node.type != Node::Type::kList) {
    if (node.type != Node::Type::kScalar) return failed("is not a list", "[]");
    const Parsed only = parse_value(*type.element, node);
    if (!only.value) return failed("is not a list", "[]");
    std::vector<Value> items{*only.value};
    if (type.element->kind == Kind::kString && node.text.find(',') != std::string::npos) {
      items.clear();
      std::istringstream text(node.text);
      for (std::string item; std::getline(text, item, ',');) items.push_back(Value{item});
    }
    return failed("is not a list", format_value(type, Value{std::move(items)}));
  }
  std::vector<Value> list;
  for (const Node& item : node.items) {
    Parsed element = parse_value(*type.element, item);
    if (!element.value) {
      return failed(fmt::format("has an element {} ('{}') that {}", list.size(), excerpt(item.text),
                                element.cause),
                    element.suggestion.empty() ? "" : fmt::format("{} there", element.suggestion));
    }
    list.push_back(std::move(*element.value));
  }
  return {Value{std::move(list)}, {}, {}};
}

bool is_plain(std::string_view text) {
  const auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
  if (text.empty()) return false;
  if (!(letter(text[0]) || text[0] == '/' || text[0] == '_' || text.starts_with("./") ||
        text.starts_with("../"))) {
    return false;
  }
  if (!std::ranges::all_of(text, [&](char c) {
        return letter(c) || is_digit(c) || c == '/' || c == '_' || c == '.' || c == '-' || c == '+';
      })) {
    return false;
  }
  std::string lower(text);
  std::ranges::transform(lower, lower.begin(),
                         [](char c) { return c >= 'A' && c <= 'Z' ? c + 32 : c; });
  for (const char* word :
       {"null", "true", "false", "yes", "no", "on", "off", "y", "n", "inf", "infinity", "nan"}) {
    if (lower == word) return false;
  }
  return true;
}

std::string quote(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (byte < 0x20 || byte == 0x7F) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  return out + '"';
}

} // namespace

Parsed parse_value(const TypeInfo& type, const Node& node) {
  if (type.kind == Kind::kOptional) {
    if (node.type == Node::Type::kNull) return {Value{}, {}, {}};
    return parse_value(*type.element, node);
  }
  if (type.kind == Kind::kList) return parse_list(type, node);
  if (node.type == Node::Type::kNull) {
    if (std::ranges::find(type.names, "null", &NamedValue::name) != type.names.end()) {
      Node named = node; // YAML's null, but one of the names
      named.type = Node::Type::kScalar;
      named.text = "null";
      return parse_value(type, named);
    }
    const bool text = type.kind == Kind::kString;
    return failed(fmt::format("is null, but must be {}", type_name(type)), text ? "\"\"" : "");
  }
  if (node.type != Node::Type::kScalar)
    return failed(fmt::format("is not {}", type_name(type)), words_of(type, node));
  if (node.quoted && type.kind != Kind::kString && type.kind != Kind::kEnum) {
    return failed(fmt::format("is a string in quotes, but must be {}", type_name(type)), node.text);
  }
  switch (type.kind) {
  case Kind::kBool:
    return parse_bool(node);
  case Kind::kInt:
    return parse_integer(type, node);
  case Kind::kDouble:
    return parse_number(node);
  case Kind::kEnum:
    return parse_enum(type, node);
  default:
    break;
  }
  if (!is_utf8(node.text)) return failed("is not valid UTF-8");
  return {Value{node.text}, {}, {}};
}

std::optional<Node> override_node(const TypeInfo& type, std::string_view text,
                                  std::string_view where, Violations& violations) {
  const TypeInfo* inner = &type;
  while (inner->kind == Kind::kOptional) {
    if (text == "null" || text == "~" || text.empty()) return Node{};
    inner = inner->element;
  }
  // As in a file: nobody means a folder of this name.
  if (inner->kind == Kind::kString && text == "null") return Node{};
  const bool quoted =
      text.size() >= 2 && (text[0] == '"' || text[0] == '\'') && text.back() == text[0];
  if (quoted || (inner->kind == Kind::kList && text.starts_with('['))) {
    return parse_yaml(text, where, /*lines=*/false, violations);
  }
  return scalar_node(text);
}

std::string format_number(double value) {
  if (std::isinf(value)) return value > 0 ? ".inf" : "-.inf";
  if (std::isnan(value)) return ".nan";
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

std::string format_value(const TypeInfo& type, const Value& value) {
  switch (type.kind) {
  case Kind::kBool:
    return std::get<bool>(value.data) ? "true" : "false";
  case Kind::kInt:
    return fmt::to_string(std::get<int64_t>(value.data));
  case Kind::kDouble:
    return format_number(std::get<double>(value.data));
  case Kind::kString: {
    const auto& text = std::get<std::string>(value.data);
    return is_plain(text) ? text : quote(text);
  }
  case Kind::kEnum: {
    const int64_t number = std::get<int64_t>(value.data);
    const auto it = std::ranges::find(type.names, number, &NamedValue::value);
    if (it == type.names.end()) return fmt::to_string(number);
    return is_plain(it->name) ? std::string(it->name) : quote(it->name);
  }
  case Kind::kOptional:
    return std::holds_alternative<std::monostate>(value.data) ? "null"
                                                              : format_value(*type.element, value);
  case Kind::kList:
    break;
  }
  std::string text = "[";
  for (const Value& item : std::get<std::vector<Value>>(value.data)) {
    if (text.size() > 1) text += ", ";
    text += format_value(*type.element, item);
  }
  return text + "]";
}

std::vector<std::string> value_names(const TypeInfo& type) {
  std::vector<std::string> names;
  for (const NamedValue& named : type.names) {
    const auto first = std::ranges::find(type.names, named.value, &NamedValue::value);
    if (first->name == named.name) names.emplace_back(named.name);
  }
  return names;
}

std::string type_name(const TypeInfo& type) {
  switch (type.kind) {
  case Kind::kBool:
    return "true or false";
  case Kind::kInt:
    return "an integer";
  case Kind::kDouble:
    return "a number";
  case Kind::kString:
    return "a string";
  case Kind::kOptional:
    return type_name(*type.element) + " or null";
  case Kind::kList: {
    const std::string element = type_name(*type.element);
    return "a list, each " + element;
  }
  case Kind::kEnum:
    break;
  }
  return fmt::format("one of {}", fmt::join(value_names(type), ", "));
}

std::string value_text(const TypeInfo& type, const FieldTraits& traits) {
  FieldTraits rest = traits; // what the words below do not say
  std::string text = type_name(type);
  if (type.kind == Kind::kOptional) {
    if (constraint_text(traits).empty()) return text;
    return "null, or " + value_text(*type.element, traits);
  }
  if (type.kind == Kind::kList) {
    FieldTraits element = traits;
    element.not_empty = element.or_one = false;
    text = "a list, each " + value_text(*type.element, element);
    rest = {};
    rest.not_empty = traits.not_empty;
    rest.or_one = traits.or_one;
  } else if (type.kind == Kind::kString && traits.not_empty) {
    text = "a non-empty string";
    rest.not_empty = false;
  } else if (type.kind == Kind::kInt && std::isfinite(traits.min) && std::isfinite(traits.max) &&
             !traits.min_excluded && !traits.max_excluded) {
    text += fmt::format(" from {:.0f} to {:.0f}", traits.min, traits.max);
    rest.min = FieldTraits().min;
    rest.max = FieldTraits().max;
  }
  const std::string rule = constraint_text(rest);
  if (rule.empty()) return text;
  const bool apart = type.kind == Kind::kList || type.kind == Kind::kEnum;
  return text + (apart ? "; " : rest.min != traits.min ? ", " : " ") + rule;
}

std::string range_text(const TypeInfo& type, const FieldTraits& traits) {
  const auto low = static_cast<double>(type.lowest), high = static_cast<double>(type.highest);
  std::string text = constraint_text(traits);
  if (traits.min < low) text = fmt::format(">= {}{}", type.lowest, text.empty() ? "" : ", " + text);
  if (traits.max > high) text += fmt::format(", <= {}", type.highest);
  return text;
}

std::string constraint_text(const FieldTraits& traits) {
  std::vector<std::string> parts;
  const auto bound = [](double v) {
    return v == std::trunc(v) && std::abs(v) <= 0x1p53 ? fmt::to_string(static_cast<int64_t>(v))
                                                       : format_number(v);
  };
  if (std::isfinite(traits.min)) {
    parts.push_back(fmt::format("{} {}", traits.min_excluded ? ">" : ">=", bound(traits.min)));
  }
  if (std::isfinite(traits.max)) {
    parts.push_back(fmt::format("{} {}", traits.max_excluded ? "<" : "<=", bound(traits.max)));
  }
  if (traits.multiple_of != 1) parts.push_back(fmt::format("multiple of {}", traits.multiple_of));
  if (traits.not_empty) parts.emplace_back("not empty");
  if (traits.or_one) parts.emplace_back("a single value needs no brackets");
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : ", ") + part;
  return text;
}

} // namespace pentatron::config
