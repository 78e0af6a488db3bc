#include "pentatron/data/tokenizer/chat/number_filters.h"

#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <optional>

#include "pentatron/base/error.h"
#include "pentatron/data/tokenizer/chat/operators.h"

namespace pentatron::data::tokenizer::chat {

namespace {

[[noreturn]] void fail_large(std::string_view filter, std::string_view number) {
  raise<DataError>("{} of {}, which is too large for 64 bits", filter, number);
}

bool is_alphanumeric(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/// Python allows _ between two digits.
std::optional<std::string> without_underscores(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') {
      out += text[i];
    } else if (i == 0 || i + 1 == text.size() || !is_alphanumeric(text[i - 1]) ||
               !is_alphanumeric(text[i + 1])) {
      return std::nullopt;
    }
  }
  return out;
}

/// int(text, base) of Python; nothing where that is an error.
std::optional<int64_t> parse_integer(const std::string& text, int64_t base) {
  std::string digits = strip(text, nullptr, true, true);
  const bool minus = digits.starts_with('-');
  if (minus || digits.starts_with('+')) digits.erase(0, 1);
  if (digits.size() > 1 && digits[0] == '0') {
    const char kind = static_cast<char>(digits[1] | 0x20);
    const int64_t named = kind == 'x' ? 16 : kind == 'o' ? 8 : kind == 'b' ? 2 : 0;
    if (named != 0 && (base == named || base == 0)) {
      base = named;
      digits.erase(0, digits.size() > 2 && digits[2] == '_' ? 3 : 2);
    }
  }
  if (base == 0) {
    base = 10;
    if (digits.starts_with('0') && digits.find_first_not_of("0_") != std::string::npos)
      return std::nullopt;
  }
  const std::optional<std::string> plain = without_underscores(digits);
  if (base < 2 || base > 36 || !plain || plain->empty() || plain->front() == '-')
    return std::nullopt;
  int64_t number = 0;
  const std::string shown = (minus ? "-" : "") + *plain;
  const auto [end, error] =
      std::from_chars(shown.data(), shown.data() + shown.size(), number, static_cast<int>(base));
  if (end != shown.data() + shown.size()) return std::nullopt;
  if (error == std::errc::result_out_of_range) fail_large("int", shown);
  return error == std::errc() ? std::optional(number) : std::nullopt;
}

/// float(text) of Python; nothing where that is an error.
std::optional<double> parse_real(const std::string& text) {
  std::optional<std::string> plain = without_underscores(strip(text, nullptr, true, true));
  if (!plain) return std::nullopt;
  if (plain->starts_with("+-") || plain->ends_with(')')) return std::nullopt; // nan(...)
  if (plain->starts_with('+')) plain->erase(0, 1);
  double number = 0;
  const char* const last = plain->data() + plain->size();
  const auto [end, error] = std::from_chars(plain->data(), last, number);
  if (end != last || plain->empty()) return std::nullopt;
  if (error == std::errc::result_out_of_range) return std::strtod(plain->c_str(), nullptr);
  return error == std::errc() ? std::optional(number) : std::nullopt;
}

int64_t truncated_to_integer(double number) {
  if (!(std::fabs(number) < 9.2e18)) fail_large("int", to_text(number));
  return static_cast<int64_t>(number);
}

/// To a multiple of 10^power, ties to the even one.
int64_t round_integer(int64_t number, int64_t power) {
  if (power > 18) return 0;
  int64_t unit = 1;
  for (int64_t i = 0; i < power; ++i) unit *= 10;
  const int64_t rest = number % unit, whole = number / unit;
  const int64_t left = std::abs(rest), right = unit - left;
  const bool away = left > right || (left == right && whole % 2 != 0);
  int64_t out = 0;
  if (__builtin_mul_overflow(whole + (away ? (number < 0 ? -1 : 1) : 0), unit, &out))
    fail_large("round", std::to_string(number));
  return out;
}

std::string printed_real(const char* format, int precision, double number) {
  const int size = std::snprintf(nullptr, 0, format, precision, number);
  std::string out(static_cast<size_t>(size) + 1, '\0');
  std::snprintf(out.data(), out.size(), format, precision, number);
  out.pop_back();
  return out;
}

/// To so many digits after the point, or before it, of the exact binary value; ties to the even.
double round_real(double number, int64_t precision) {
  constexpr int64_t kAllDigits = 330, kMostDigits = 310; // that a double can have
  if (!std::isfinite(number) || precision > kAllDigits) return number;
  if (precision >= 0)
    return std::strtod(printed_real("%.*f", static_cast<int>(precision), number).c_str(), nullptr);
  const double size = std::trunc(std::fabs(number));
  const auto digits = size == 0 ? 0 : std::ssize(printed_real("%.*f", 0, size));
  const int64_t power = precision < -kMostDigits ? kMostDigits : -precision;
  if (power > digits) return std::copysign(0.0, number);
  if (power == digits) {
    const double unit = std::pow(10.0, static_cast<double>(power));
    return std::copysign(std::fabs(number) > unit / 2 ? unit : 0.0, number);
  }
  const auto kept = static_cast<int>(digits - power - 1);
  return std::strtod(printed_real("%.*e", kept, number).c_str(), nullptr);
}

} // namespace

Value to_int(const Value& v, const Arguments& arguments) {
  int64_t integer = 0;
  if (to_integer(v, integer)) return integer;
  if (const double* d = v.get<double>(); d != nullptr && !std::isnan(*d))
    return truncated_to_integer(*d);
  if (const std::string* text = v.string()) {
    const int64_t base = integer_of(arguments.find(1, "base"), 10, "int");
    if (const std::optional<int64_t> whole = parse_integer(*text, base)) return *whole;
    if (const std::optional<double> real = parse_real(*text); real && std::isfinite(*real))
      return truncated_to_integer(*real);
  }
  const Value* otherwise = arguments.find(0, "default");
  return otherwise == nullptr ? Value(int64_t{0}) : *otherwise;
}

Value to_float(const Value& v, const Arguments& arguments) {
  double real = 0;
  if (to_real(v, real)) return real;
  if (const std::string* text = v.string())
    if (const std::optional<double> parsed = parse_real(*text)) return *parsed;
  const Value* otherwise = arguments.find(0, "default");
  return otherwise == nullptr ? Value(0.0) : *otherwise;
}

Value rounded(const Value& v, const Arguments& arguments) {
  double number = 0;
  if (!to_real(v, number)) raise<DataError>("round needs a number, not {}", type_name(v));
  const Value* given = arguments.find(0, "precision");
  if (given != nullptr && given->is_none())
    throw DataError("round needs an integer as precision, not None");
  const int64_t precision = integer_of(given, 0, "round");
  const Value* how = arguments.find(1, "method");
  const std::string method = how == nullptr ? "common" : string_of(*how, "round");
  int64_t integer = 0;
  const bool whole = to_integer(v, integer);
  if (method == "common")
    return whole ? Value(precision < 0 ? round_integer(integer, -precision) : integer)
                 : Value(round_real(number, precision));
  if (method != "ceil" && method != "floor")
    raise<DataError>("round has method='{}'\n  try: method='common', 'ceil' or 'floor'", method);
  if (std::llabs(precision) > 300 || !std::isfinite(number))
    raise<DataError>("round of {} to {} digits with method='{}' is not supported", to_text(v),
                     precision, method);
  const double scale = std::pow(10.0, static_cast<double>(precision));
  const double scaled = number * scale;
  return (method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale;
}

Value absolute(const Value& v) {
  int64_t i = 0;
  double d = 0;
  if (to_integer(v, i)) {
    if (i == INT64_MIN) fail_large("abs", to_text(v));
    return i < 0 ? -i : i;
  }
  if (!to_real(v, d)) raise<DataError>("abs needs a number, not {}", type_name(v));
  return std::fabs(d);
}

Value sum(const List& items, const Value& start) {
  if (start.list() != nullptr) {
    List all = *start.list();
    int64_t nodes = start.nodes;
    for (const Value& item : items) {
      if (item.list() == nullptr || item.is_tuple != start.is_tuple)
        raise<DataError>("sum needs lists as start is one, not {}", type_name(item));
      nodes += item.nodes;
      if (nodes > kMaxValueNodes) throw DataError("sum makes a list that is too long");
      all.insert(all.end(), item.list()->begin(), item.list()->end());
    }
    return start.is_tuple ? make_tuple(std::move(all)) : make_list(std::move(all));
  }
  Value total = start;
  double number = 0;
  if (!to_real(total, number))
    raise<DataError>("sum needs a number as start, not {}", type_name(start));
  for (const Value& item : items) {
    if (!to_real(item, number)) raise<DataError>("sum needs numbers, not {}", type_name(item));
    total = apply_operator("+", total, item);
  }
  return total;
}

} // namespace pentatron::data::tokenizer::chat
