#include "pentatron/data/tokenizer/chat/formats.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "pentatron/base/error.h"
#include "pentatron/data/tokenizer/chat/builtins.h"
#include "pentatron/data/tokenizer/unicode.h"

namespace pentatron::data::tokenizer::chat {

namespace {

constexpr size_t kMostDigits = 4; ///< of a width or precision

template <class T> std::string printed(const std::string& format, T value) {
  const int size = std::snprintf(nullptr, 0, format.c_str(), value);
  std::string out(static_cast<size_t>(std::max(size, 0)) + 1, '\0');
  std::snprintf(out.data(), out.size(), format.c_str(), value);
  out.pop_back();
  return out;
}

/// The first `count` characters.
std::string first_characters(const std::string& text, int64_t count) {
  size_t end = 0;
  for (; end < text.size() && count > 0; --count) end += utf8_length(text[end]);
  return text.substr(0, end);
}

std::string repeated_text(const std::string& text, int64_t count) {
  std::string out;
  for (int64_t i = 0; i < count; ++i) out += text;
  return out;
}

/// %-8.3s: at most 3 characters, and spaces up to 8.
std::string in_field(const std::string& text, const std::string& flags, const std::string& width,
                     const std::string& precision) {
  const std::string shown =
      precision.empty() ? text
                        : first_characters(text, std::strtoll(precision.c_str() + 1, nullptr, 10));
  const std::string pad =
      repeated_text(" ", std::strtoll(width.c_str(), nullptr, 10) - length(Value(shown)));
  return flags.find('-') != std::string::npos ? shown + pad : pad + shown;
}

/// The character of %c and {:c}.
std::string character_of(const Value& value) {
  int64_t code = 0;
  if (value.string() != nullptr && length(value) == 1) return *value.string();
  if (!to_integer(value, code) || code < 0 || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000))
    raise<DataError>("the format c needs a character or its number, not {}", type_name(value));
  std::string out;
  append_utf8(out, static_cast<char32_t>(code));
  return out;
}

/// One value in the format "%" + `field` + `kind`.
std::string percent_value(const Value& value, const std::string& field, char kind) {
  const size_t width = std::min(field.find_first_not_of("-+ 0#", 1), field.size());
  const size_t precision = std::min(field.find('.'), field.size());
  if (std::string_view("srac").find(kind) != std::string_view::npos) {
    const std::string text = kind == 'c'   ? character_of(value)
                             : kind == 's' ? to_text(value)
                                           : repr(value);
    return in_field(text, field.substr(1, width - 1), field.substr(width, precision - width),
                    kind == 'c' ? "" : field.substr(precision));
  }
  int64_t integer = 0;
  double real = 0;
  if (std::string_view("eEfFgG").find(kind) != std::string_view::npos) {
    if (!to_real(value, real))
      raise<DataError>("%{} needs a number, not {}", kind, type_name(value));
    return printed(field + kind, std::isnan(real) ? std::fabs(real) : real);
  }
  const double* fraction = value.get<double>(); // cut off, as Python does
  const bool decimal = kind == 'd' || kind == 'i' || kind == 'u';
  if (decimal && fraction != nullptr && std::abs(*fraction) < 9e18)
    integer = static_cast<int64_t>(*fraction);
  else if (!to_integer(value, integer))
    raise<DataError>("%{} needs an integer, not {}", kind, type_name(value));
  if (integer < 0 && !decimal) raise<DataError>("%{} of a negative number is not supported", kind);
  return printed(field + "l" + (decimal ? 'd' : kind), integer);
}

struct Spec {
  std::string fill = " ";
  char align = '\0', sign = '-', grouping = '\0', type = '\0';
  bool alternate = false, precise = false;
  int64_t width = 0, precision = 0;
};

Spec parse_spec(const std::string& text) {
  Spec spec;
  size_t at = 0;
  const auto is_one_of = [&](size_t i, std::string_view set) {
    return i < text.size() && set.find(text[i]) != std::string_view::npos;
  };
  const auto number = [&] {
    const size_t end = std::min(text.find_first_not_of("0123456789", at), text.size());
    if (end - at > kMostDigits)
      raise<DataError>("the format '{}' has more than {} digits", text, kMostDigits);
    const std::string digits = text.substr(at, end - at);
    at = end;
    return std::strtoll(digits.c_str(), nullptr, 10);
  };
  const size_t first = text.empty() ? 0 : utf8_length(text[0]);
  const bool filled = is_one_of(first, "<>=^");
  if (filled) spec.fill = text.substr(0, first);
  if (filled) at = first;
  if (is_one_of(at, "<>=^")) spec.align = text[at++];
  if (is_one_of(at, "+- ")) spec.sign = text[at++];
  if (is_one_of(at, "#")) spec.alternate = text[at++] == '#';
  if (is_one_of(at, "0") && !filled) {
    spec.fill = "0";
    if (spec.align == '\0') spec.align = '0'; // '=' of numbers
    ++at;
  }
  spec.width = number();
  if (is_one_of(at, ",_")) spec.grouping = text[at++];
  if (is_one_of(at, ".")) {
    ++at;
    spec.precise = is_one_of(at, "0123456789");
    spec.precision = number();
    if (!spec.precise) raise<DataError>("the format '{}' lacks a precision after the point", text);
  }
  if (at < text.size()) spec.type = text[at++];
  if (at < text.size()) raise<DataError>("the format '{}' is not supported", text);
  return spec;
}

std::string aligned(const std::string& text, const Spec& spec, char align) {
  const int64_t missing = std::max<int64_t>(0, spec.width - length(Value(text)));
  const int64_t left = align == '<' ? 0 : align == '^' ? missing / 2 : missing;
  return repeated_text(spec.fill, left) + text + repeated_text(spec.fill, missing - left);
}

/// 1234567 in groups of `size` digits from its end.
std::string in_groups(const std::string& digits, char separator, size_t size) {
  std::string out;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (separator != '\0' && i > 0 && (digits.size() - i) % size == 0) out += separator;
    out += digits[i];
  }
  return out;
}

/// Sign, prefix ("0x"), digits before the point, and what follows them.
std::string number_in(const Spec& spec, bool negative, const std::string& prefix,
                      std::string digits, const std::string& rest) {
  const std::string head = (negative           ? "-"
                            : spec.sign == '+' ? "+"
                            : spec.sign == ' ' ? " "
                                               : "") +
                           prefix;
  const size_t group =
      std::string_view("bxXo").find(spec.type) != std::string_view::npos && spec.type != '\0' ? 4
                                                                                              : 3;
  const bool inside = spec.align == '=' || spec.align == '0';
  std::string grouped = in_groups(digits, spec.grouping, group);
  if (inside && spec.fill == "0") { // zeros are digits, which are grouped too
    const auto room = spec.width - std::ssize(head) - std::ssize(rest);
    while (std::ssize(grouped) < room) {
      digits.insert(0, spec.grouping == '\0' ? static_cast<size_t>(room - std::ssize(grouped)) : 1,
                    '0');
      grouped = in_groups(digits, spec.grouping, group);
    }
  }
  const std::string text = head + grouped + rest;
  if (!inside) return aligned(text, spec, spec.align == '\0' ? '>' : spec.align);
  return head + repeated_text(spec.fill, spec.width - std::ssize(text)) + grouped + rest;
}

[[noreturn]] void fail_format(const std::string& text, const Value& value) {
  raise<DataError>("the format '{}' does not fit {}", text, type_name(value));
}

std::string formatted_integer(int64_t number, const Spec& spec, const std::string& text,
                              const Value& value) {
  if (spec.precise) fail_format(text, value);
  if (spec.type == 'c') {
    if (spec.sign != '-' || spec.grouping != '\0') fail_format(text, value);
    return aligned(character_of(value), spec, spec.align == '\0' ? '>' : spec.align);
  }
  const int base = spec.type == 'b'            ? 2
                   : spec.type == 'o'          ? 8
                   : (spec.type | 0x20) == 'x' ? 16
                                               : 10;
  if (spec.grouping == ',' && base != 10) fail_format(text, value);
  const uint64_t size =
      number < 0 ? uint64_t{0} - static_cast<uint64_t>(number) : static_cast<uint64_t>(number);
  std::string digits(64, '\0');
  digits.resize(static_cast<size_t>(
      std::to_chars(digits.data(), digits.data() + digits.size(), size, base).ptr - digits.data()));
  if (spec.type == 'X') digits = to_upper(digits);
  const std::string prefix = spec.alternate && base != 10 ? std::string("0") + spec.type : "";
  return number_in(spec, number < 0, prefix, digits, "");
}

/// The digits of a number without a type but with a precision: as %g, with a digit after the point.
std::string general(double number, int precision, bool alternate) {
  const std::string scientific = printed(fmt::format("%.{}e", precision - 1), number);
  const int exponent = std::atoi(scientific.c_str() + scientific.find('e') + 1);
  if (exponent < -4 || exponent >= precision - 1) {
    const size_t e = scientific.find('e');
    std::string mantissa = scientific.substr(0, e);
    if (!alternate && mantissa.find('.') != std::string::npos) {
      mantissa.resize(mantissa.find_last_not_of('0') + 1);
      if (mantissa.ends_with('.')) mantissa.pop_back();
    }
    return mantissa + scientific.substr(e);
  }
  std::string out = printed(fmt::format("%{}.{}g", alternate ? "#" : "", precision), number);
  return out.find('.') == std::string::npos ? out + ".0" : out;
}

std::string formatted_real(double number, const Spec& spec, const std::string& text,
                           const Value& value) {
  if (std::string_view("eEfFgG%").find(spec.type) == std::string_view::npos && spec.type != '\0')
    fail_format(text, value);
  const bool negative = std::signbit(number) && !std::isnan(number);
  const double size = std::fabs(number) * (spec.type == '%' ? 100 : 1);
  std::string shown;
  if (!std::isfinite(size)) {
    shown = std::isnan(size) ? "nan" : "inf";
    if (spec.type >= 'A' && spec.type <= 'Z') shown = to_upper(shown);
  } else if (spec.type == '\0' && !spec.precise) {
    shown = to_text(size);
  } else if (spec.type == '\0') {
    shown = general(size, static_cast<int>(std::max<int64_t>(1, spec.precision)), spec.alternate);
  } else {
    shown =
        printed(fmt::format("%{}.{}{}", spec.alternate ? "#" : "",
                            spec.precise ? spec.precision : 6, spec.type == '%' ? 'f' : spec.type),
                size);
  }
  const size_t whole = std::min(shown.find_first_not_of("0123456789"), shown.size());
  const std::string digits = std::isfinite(size) ? shown.substr(0, whole) : shown;
  return number_in(spec, negative, "", digits,
                   shown.substr(digits.size()) + (spec.type == '%' ? "%" : ""));
}

/// Python's format(value, text).
std::string formatted(const Value& value, const std::string& text) {
  if (text.empty()) return to_text(value);
  const Spec spec = parse_spec(text);
  int64_t integer = 0;
  double real = 0;
  if (const std::string* string = value.string()) {
    if ((spec.type != '\0' && spec.type != 's') || spec.sign != '-' || spec.alternate ||
        spec.grouping != '\0' || spec.align == '=')
      fail_format(text, value);
    const bool left = spec.align == '\0' || spec.align == '0';
    return aligned(spec.precise ? first_characters(*string, spec.precision) : *string, spec,
                   left ? '<' : spec.align);
  }
  if (!to_real(value, real)) fail_format(text, value);
  const bool of_integers =
      spec.type == '\0' || std::string_view("bcdoxX").find(spec.type) != std::string_view::npos;
  if (to_integer(value, integer) && of_integers)
    return formatted_integer(integer, spec, text, value);
  return formatted_real(real, spec, text, value);
}

/// What ascii() makes of a text of repr().
std::string in_ascii(const std::string& text) {
  std::string out;
  for_each_code_point(text, [&](char32_t c) {
    const auto code = static_cast<uint32_t>(c);
    out += code < 0x80      ? std::string(1, static_cast<char>(code))
           : code < 0x100   ? fmt::format("\\x{:02x}", code)
           : code < 0x10000 ? fmt::format("\\u{:04x}", code)
                            : fmt::format("\\U{:08x}", code);
  });
  return out;
}

/// The argument that a field names, with its members: "0.name[key]".
class FieldReader {
 public:
  explicit FieldReader(const Arguments& arguments) : arguments_(arguments) {}

  Value read(const std::string& field) {
    const size_t end = std::min(field.find_first_of(".["), field.size());
    const std::string name = field.substr(0, end);
    size_t position = SIZE_MAX;
    const char* const last = name.data() + name.size();
    const bool number = !name.empty() && std::from_chars(name.data(), last, position).ptr == last;
    if (name.empty()) position = next_++;
    if (name.empty() || number) {
      counted_ = counted_ || name.empty();
      numbered_ = numbered_ || number;
      if (counted_ && numbered_) throw DataError("format has both {} and {0}");
    } else {
      position = SIZE_MAX;
    }
    const Value* found = arguments_.find(position, number || name.empty() ? "" : name);
    if (found == nullptr) raise<DataError>("format has no argument for {{{}}}", field);
    return members(*found, field, end);
  }

 private:
  static Value members(Value value, const std::string& field, size_t at) {
    while (at < field.size()) {
      const bool index = field[at] == '[';
      const size_t end =
          index ? field.find(']', at) : std::min(field.find_first_of(".[", at + 1), field.size());
      if (end == std::string::npos || end == at + 1 || (field[at] != '.' && !index))
        raise<DataError>("format has the field '{}', which is not one", field);
      const std::string key = field.substr(at + 1, end - at - 1);
      int64_t i = 0;
      const char* const last = key.data() + key.size();
      const bool number = index && std::from_chars(key.data(), last, i).ptr == last && i >= 0;
      value = number ? element_of(value, i)
                     : member_of(value, key, index ? Access::kBrackets : Access::kDot);
      at = end + (index ? 1 : 0);
    }
    return value;
  }

  const Arguments& arguments_;
  size_t next_ = 0;
  bool counted_ = false, numbered_ = false;
};

} // namespace

std::string percent_format(const std::string& text, const Arguments& arguments) {
  std::string out;
  size_t next = 0;
  bool named = false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out += text[i];
      continue;
    }
    size_t begin = i + 1;
    std::string name;
    const bool has_name = begin < text.size() && text[begin] == '(';
    if (has_name) {
      const size_t end = text.find(')', begin);
      if (end == std::string::npos) throw DataError("a format with % has a name without ')'");
      name = text.substr(begin + 1, end - begin - 1);
      begin = end + 1;
      named = true;
    }
    const size_t flags = std::min(text.find_first_not_of("-+ 0#", begin), text.size());
    const size_t width = std::min(text.find_first_not_of("0123456789", flags), text.size());
    size_t end = width;
    if (end < text.size() && text[end] == '.')
      end = std::min(text.find_first_not_of("0123456789", end + 1), text.size());
    const char kind = end < text.size() ? text[end] : '\0';
    const std::string field = "%" + text.substr(begin, end - begin);
    const bool alternate = field.find('#') != std::string::npos;
    if (kind == '%') {
      out += '%';
    } else if (std::string_view("srcdiuxXoeEfFgG").find(kind) == std::string_view::npos ||
               (alternate && kind == 'o') || flags - begin > kMostDigits ||
               width - flags > kMostDigits || end - width > kMostDigits + 1) {
      throw DataError("a format with % is not supported");
    } else if (has_name) {
      const Value* value = arguments.find(SIZE_MAX, name);
      if (value == nullptr) raise<DataError>("a format with % lacks a value for {}", name);
      out += percent_value(*value, field, kind);
    } else {
      if (next >= arguments.values.size()) throw DataError("a format with % lacks a value");
      out += percent_value(arguments.values[next++], field, kind);
    }
    i = end;
    check_length(out);
  }
  const bool mapping = arguments.values.size() == 1 && arguments.values[0].dict() != nullptr;
  if (next < arguments.values.size() && !named && !mapping)
    throw DataError("a format with % has too many values");
  return out;
}

std::string brace_format(const std::string& text, const Arguments& arguments) {
  std::string out;
  FieldReader fields(arguments);
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if ((c == '{' || c == '}') && i + 1 < text.size() && text[i + 1] == c) {
      out += c;
      ++i;
    } else if (c == '{') {
      const size_t end = text.find('}', i);
      if (end == std::string::npos) throw DataError("format has a '{' that is not closed");
      const std::string field = text.substr(i + 1, end - i - 1);
      if (field.find('{') != std::string::npos)
        throw DataError("format has a field in the specification of one, which is not supported");
      const size_t name = std::min(field.find_first_of("!:"), field.size());
      const bool converted = name < field.size() && field[name] == '!';
      const size_t colon = converted ? name + 2 : name;
      Value value = fields.read(field.substr(0, name));
      if (converted) {
        const char kind = name + 1 < field.size() ? field[name + 1] : '\0';
        if (std::string_view("rsa").find(kind) == std::string_view::npos || kind == '\0' ||
            (colon < field.size() && field[colon] != ':'))
          raise<DataError>("format has the field '{}', which is not one", field);
        value = kind == 's' ? to_text(value) : kind == 'r' ? repr(value) : in_ascii(repr(value));
      }
      out += formatted(value, colon < field.size() ? field.substr(colon + 1) : "");
      i = end;
    } else if (c == '}') {
      throw DataError("format has a '}' that closes nothing");
    } else {
      out += c;
    }
    check_length(out);
  }
  return out;
}

} // namespace pentatron::data::tokenizer::chat
