#include "pentatron/data/tokenizer/chat/operators.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>

#include "pentatron/base/error.h"
#include "pentatron/data/tokenizer/chat/formats.h"

namespace pentatron::data::tokenizer::chat {

namespace {

[[noreturn]] void fail_large() {
  throw DataError("it computes an integer that is too large");
}

std::string joined(std::string left, std::string_view right) {
  left += right;
  check_length(left);
  return left;
}

/// A string or a list, so many times; none if there are fewer than 1.
Value repeated(const Value& value, int64_t times) {
  const auto size = static_cast<int64_t>(value.string() != nullptr ? value.string()->size()
                                                                   : value.list()->size());
  if (size == 0) times = 0;
  const auto most = static_cast<int64_t>(kMaxValueBytes) / std::max<int64_t>(size, 1);
  if (times > most) throw DataError("it makes a string or list that is too long");
  if (const std::string* text = value.string()) {
    std::string out;
    for (int64_t i = 0; i < times; ++i) out += *text;
    return value.is_markup ? make_markup(std::move(out)) : Value(std::move(out));
  }
  if (times > 0 && value.nodes > kMaxValueNodes / times)
    throw DataError("it makes a string or list that is too long");
  List out;
  for (int64_t i = 0; i < times; ++i)
    out.insert(out.end(), value.list()->begin(), value.list()->end());
  return value.is_tuple ? make_tuple(std::move(out)) : make_list(std::move(out));
}

Value power(int64_t base, int64_t exponent) {
  int64_t out = 1;
  for (; exponent > 0 && base != 0 && base != 1 && base != -1; --exponent)
    if (__builtin_mul_overflow(out, base, &out)) fail_large();
  if (exponent == 0) return out;
  return base == -1 && exponent % 2 == 0 ? 1 : base;
}

Value of_integers(std::string_view op, int64_t a, int64_t b) {
  int64_t out = 0;
  bool overflow = false;
  if (op == "+") overflow = __builtin_add_overflow(a, b, &out);
  if (op == "-") overflow = __builtin_sub_overflow(a, b, &out);
  if (op == "*") overflow = __builtin_mul_overflow(a, b, &out);
  if (op == "//" || op == "%") {
    overflow = a == INT64_MIN && b == -1;
    if (!overflow) {
      const int64_t remainder = a % b;
      const bool down = remainder != 0 && (remainder < 0) != (b < 0);
      out = op == "%" ? remainder + (down ? b : 0) : a / b - (down ? 1 : 0);
    }
  }
  if (overflow) fail_large();
  return out;
}

} // namespace

Value apply_operator(std::string_view op, const Value& left, const Value& right) {
  if (op == "~") return joined(to_text(left), to_text(right));
  if (op == "+" && left.string() != nullptr && right.string() != nullptr) {
    if (left.is_markup || right.is_markup)
      return make_markup(joined(markup_text(left), markup_text(right)));
    return joined(*left.string(), *right.string());
  }
  if (op == "+" && left.list() != nullptr && right.list() != nullptr &&
      left.is_tuple == right.is_tuple) {
    List both = *left.list();
    both.insert(both.end(), right.list()->begin(), right.list()->end());
    return left.is_tuple ? make_tuple(std::move(both)) : make_list(std::move(both));
  }
  int64_t a = 0, b = 0;
  const auto repeats = [](const Value& v) { return v.string() != nullptr || v.list() != nullptr; };
  if (op == "*" && repeats(left) && to_integer(right, b)) return repeated(left, b);
  if (op == "*" && repeats(right) && to_integer(left, a)) return repeated(right, a);
  if (op == "%" && left.string() != nullptr) {
    Arguments values{.values = right.is_tuple ? *right.list() : List{right}, .named = {}};
    if (right.dict() != nullptr)
      for (const auto& [key, value] : *right.dict())
        if (key.string() != nullptr) values.named.emplace_back(*key.string(), value);
    if (!left.is_markup) return percent_format(*left.string(), values);
    escape_arguments(values);
    return make_markup(percent_format(*left.string(), values));
  }
  double x = 0, y = 0;
  if (!to_real(left, x) || !to_real(right, y))
    raise<DataError>("it applies '{}' to {} and {}", op, type_name(left), type_name(right));
  const bool integers = to_integer(left, a) && to_integer(right, b);
  if ((op == "/" || op == "//" || op == "%") && y == 0) throw DataError("it divides by zero");
  if (op == "**") {
    if (integers && b >= 0) return power(a, b);
    if (x == 0 && y < 0) throw DataError("it divides by zero");
    const double out = std::pow(x, y);
    if (std::isnan(out) && !std::isnan(x) && !std::isnan(y))
      throw DataError("it computes a number that is not real");
    if (std::isinf(out) && std::isfinite(x) && std::isfinite(y))
      throw DataError("it computes a number that is too large");
    return out;
  }
  if (integers && op != "/") return of_integers(op, a, b);
  if (op == "+") return x + y;
  if (op == "-") return x - y;
  if (op == "*") return x * y;
  if (op == "/") return x / y;
  if (op == "//") return std::floor(x / y);
  return x - std::floor(x / y) * y;
}

} // namespace pentatron::data::tokenizer::chat
