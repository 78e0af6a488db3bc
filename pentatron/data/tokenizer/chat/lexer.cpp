#include "pentatron/data/tokenizer/chat/lexer.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <system_error>

#include "pentatron/base/error.h"
#include "pentatron/data/tokenizer/unicode.h"

namespace pentatron::data::tokenizer::chat {

namespace {

bool is_space_byte(char c) {
  return c == ' ' || (c >= '\t' && c <= '\r');
}
bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_name_start(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

class Lexer {
 public:
  Lexer(std::string_view source, const TemplateRules& rules) : in_(source), rules_(rules) {
    if (!rules.keep_trailing_newline && in_.ends_with('\n')) in_.remove_suffix(1);
  }

  std::vector<Token> run() {
    while (at_ < in_.size()) {
      const size_t open = next_open();
      text(open);
      if (open == in_.size()) break;
      const char kind = in_[open + 1];
      at_ = open + 2;
      if (at_ < in_.size() && (in_[at_] == '-' || in_[at_] == '+')) ++at_;
      if (kind == '#') {
        comment();
      } else if (kind != '%' || !raw()) {
        block(kind == '{');
      }
    }
    add(TokenKind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  void add(TokenKind kind, std::string text) { tokens_.push_back({kind, std::move(text), line_}); }
  void advance(size_t to) {
    line_ += static_cast<int>(std::count(in_.begin() + static_cast<std::ptrdiff_t>(at_),
                                         in_.begin() + static_cast<std::ptrdiff_t>(to), '\n'));
    at_ = to;
  }

  size_t next_open() const {
    for (size_t i = at_; i + 1 < in_.size(); ++i) {
      if (in_[i] == '{' && (in_[i + 1] == '{' || in_[i + 1] == '%' || in_[i + 1] == '#')) return i;
    }
    return in_.size();
  }

  /// Behind `word` and the white space around it; npos if something else stands there.
  size_t behind_word(std::string_view word, size_t at) const {
    const auto skip = [&] {
      while (at < in_.size() && is_space_byte(in_[at])) ++at;
    };
    skip();
    if (!in_.substr(at).starts_with(word)) return std::string_view::npos;
    at += word.size();
    skip();
    return at;
  }

  /// {% raw %} ... {% endraw %}, of which the first one is open: the text between them is no
  /// template. False for another block.
  bool raw() {
    const size_t begin = behind_word("raw", at_);
    if (begin == std::string_view::npos) return false;
    const bool strip = in_.substr(begin).starts_with("-%}");
    if (!strip && !in_.substr(begin).starts_with("%}")) return false;
    close(strip, begin + (strip ? 3 : 2), /*trims=*/false);
    for (size_t open = in_.find("{%", at_); open != std::string_view::npos;
         open = in_.find("{%", open + 1)) {
      const std::string_view rest = in_.substr(open + 2);
      const bool sign = rest.starts_with('-') || rest.starts_with('+');
      const size_t end = behind_word("endraw", open + 2 + (sign ? 1 : 0));
      if (end == std::string_view::npos) continue;
      const std::string_view last = in_.substr(end);
      const bool dash = last.starts_with("-%}"), plus = last.starts_with("+%}");
      if (!dash && !plus && !last.starts_with("%}")) continue;
      text(open);
      close(dash, end + (dash || plus ? 3 : 2), /*trims=*/!plus);
      return true;
    }
    raise<DataError>("line {} of the chat template: the block raw has no end", line_);
  }

  /// The text before the block that opens at `open`, without the white space that goes.
  void text(size_t open) {
    std::string_view text = in_.substr(at_, open - at_);
    if (strip_next_) {
      while (!text.empty() && is_space_byte(text.front())) text.remove_prefix(1);
    } else if (trim_newline_ && text.starts_with('\n')) {
      text.remove_prefix(1);
    }
    if (open < in_.size()) {
      const char mark = open + 2 < in_.size() ? in_[open + 2] : '\0';
      if (mark == '-') {
        while (!text.empty() && is_space_byte(text.back())) text.remove_suffix(1);
      } else if (rules_.lstrip_blocks && mark != '+' && in_[open + 1] != '{') {
        // A block that is first in its line takes the white space before it along.
        size_t end = text.size();
        while (end > 0 && (text[end - 1] == ' ' || text[end - 1] == '\t')) --end;
        const bool line_start = end == 0 ? at_line_start(text, open) : text[end - 1] == '\n';
        if (line_start) text = text.substr(0, end);
      }
    }
    if (!text.empty()) add(TokenKind::kText, std::string(text));
    advance(open);
    strip_next_ = trim_newline_ = false;
  }
  /// Whether only blanks stand between the start of its line and `open`, where all of `text`, which
  /// ends there, is blank.
  bool at_line_start(std::string_view text, size_t open) const {
    const size_t begin = open - text.size();
    return begin == 0 || in_[begin - 1] == '\n';
  }

  void comment() {
    const size_t end = in_.find("#}", at_);
    if (end == std::string_view::npos)
      raise<DataError>("line {} of the chat template: the comment has no end", line_);
    close(in_[end - 1] == '-' && end > at_, end + 2, /*trims=*/true);
  }

  void close(bool strip, size_t to, bool trims) {
    strip_next_ = strip;
    trim_newline_ = trims && rules_.trim_blocks;
    advance(to);
  }

  void block(bool print) {
    add(print ? TokenKind::kBeginPrint : TokenKind::kBeginBlock, "");
    const std::string_view end = print ? "}}" : "%}";
    int depth = 0; // of brackets: a dictionary may end in }}
    for (;;) {
      while (at_ < in_.size() && is_space_byte(in_[at_])) advance(at_ + 1);
      if (at_ >= in_.size())
        raise<DataError>("line {} of the chat template: a block has no end", line_);
      const std::string_view rest = in_.substr(at_);
      const bool dash = rest[0] == '-' && rest.substr(1).starts_with(end),
                 plus = !print && rest[0] == '+' && rest.substr(1).starts_with(end);
      if (dash || plus || (depth == 0 && rest.starts_with(end))) {
        add(print ? TokenKind::kEndPrint : TokenKind::kEndBlock, "");
        close(dash, at_ + (dash || plus ? 3 : 2), /*trims=*/!print && !plus);
        return;
      }
      token(rest, depth);
    }
  }

  void token(std::string_view rest, int& depth) {
    const char c = rest[0];
    if (is_name_start(c)) {
      size_t n = 1;
      while (n < rest.size() && (is_name_start(rest[n]) || is_digit(rest[n]))) ++n;
      add(TokenKind::kName, std::string(rest.substr(0, n)));
      at_ += n;
    } else if (is_digit(c)) {
      number(rest);
    } else if (c == '"' || c == '\'') {
      string(rest);
    } else {
      constexpr std::array<std::string_view, 8> kDouble = {"==", "!=", "<=", ">=", "//", "**"};
      for (const std::string_view both : kDouble) {
        if (!both.empty() && rest.starts_with(both)) {
          add(TokenKind::kOperator, std::string(both));
          at_ += 2;
          return;
        }
      }
      if (std::string_view("+-*/%~<>=()[]{}.,:|").find(c) == std::string_view::npos)
        raise<DataError>("line {} of the chat template: the byte 0x{:02X} has no meaning here",
                         line_, static_cast<unsigned char>(c));
      if (c == '(' || c == '[' || c == '{') ++depth;
      if (c == ')' || c == ']' || c == '}') --depth;
      add(TokenKind::kOperator, std::string(1, c));
      ++at_;
    }
  }

  /// Behind the digits at `at`, among which single underscores may stand.
  template <class IsDigit>
  static size_t behind_digits(std::string_view text, size_t at, IsDigit&& is_one) {
    while (at < text.size()) {
      const size_t next = at + (text[at] == '_' ? 1 : 0);
      if (next >= text.size() || !is_one(text[next])) break;
      at = next + 1;
    }
    return at;
  }

  /// Bytes of a number with a point or an exponent; 0 if there is neither.
  static size_t real_bytes(std::string_view text) {
    const size_t whole = behind_digits(text, 0, is_digit);
    const auto digit_at = [&](size_t at) { return at < text.size() && is_digit(text[at]); };
    size_t end = whole;
    if (end < text.size() && text[end] == '.' && digit_at(end + 1))
      end = behind_digits(text, end + 1, is_digit);
    if (end < text.size() && (text[end] == 'e' || text[end] == 'E')) {
      const bool sign = end + 1 < text.size() && (text[end + 1] == '-' || text[end + 1] == '+');
      const size_t exponent = end + (sign ? 2 : 1);
      if (digit_at(exponent)) return behind_digits(text, exponent, is_digit);
    }
    return end > whole ? end : 0;
  }

  void number(std::string_view rest) {
    const bool member = at_ > 0 && in_[at_ - 1] == '.'; // an index: a.0.1
    size_t n = member ? 0 : real_bytes(rest), begin = 0;
    const bool real = n > 0;
    int base = 10;
    if (!real) {
      const char kind = rest.size() > 1 && rest[0] == '0' ? rest[1] : ' ';
      base = kind == 'x' || kind == 'X'   ? 16
             : kind == 'o' || kind == 'O' ? 8
             : kind == 'b' || kind == 'B' ? 2
                                          : 10;
      const auto is_one = [base](char c) {
        const bool letter = (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
        return base == 16 ? is_digit(c) || letter : c >= '0' && c < '0' + base;
      };
      begin = base == 10 ? 0 : 2;
      n = base == 10 && rest[0] == '0' ? behind_digits(rest, 0, [](char c) { return c == '0'; })
                                       : behind_digits(rest, begin, is_one);
      if (n == begin) { // no digits follow 0x
        base = 10;
        begin = 0;
        n = 1;
      }
    }
    std::string digits(rest.substr(begin, n - begin));
    std::erase(digits, '_');
    constexpr size_t kMostDigits = 400;
    int64_t value = 0;
    if (digits.size() > kMostDigits ||
        (!real && std::from_chars(digits.data(), digits.data() + digits.size(), value, base).ec !=
                      std::errc()))
      raise<DataError>("line {} of the chat template: the number {} is too large", line_,
                       rest.substr(0, n));
    add(real ? TokenKind::kFloat : TokenKind::kInteger, real ? digits : fmt::to_string(value));
    at_ += n;
  }

  void string(std::string_view rest) {
    std::string value;
    size_t i = 1;
    for (; i < rest.size() && rest[i] != rest[0]; ++i) {
      if (rest[i] != '\\' || i + 1 >= rest.size()) {
        value += rest[i];
        continue;
      }
      const char c = rest[++i];
      switch (c) {
      case 'n':
        value += '\n';
        break;
      case 't':
        value += '\t';
        break;
      case 'r':
        value += '\r';
        break;
      case '\\':
      case '\'':
      case '"':
        value += c;
        break;
      case '\n':
        break;
      case 'u':
      case 'x':
        i += code_point(rest.substr(i + 1, c == 'u' ? 4 : 2), value);
        break;
      default:
        value += '\\';
        value += c;
      }
    }
    if (i >= rest.size())
      raise<DataError>("line {} of the chat template: a string has no end", line_);
    add(TokenKind::kString, std::move(value));
    advance(at_ + i + 1);
  }

  size_t code_point(std::string_view digits, std::string& value) const {
    char32_t c = 0;
    for (const char d : digits) {
      const auto at = std::string_view("0123456789abcdef")
                          .find(d >= 'A' && d <= 'F' ? static_cast<char>(d + 32) : d);
      if (at == std::string_view::npos)
        digits = {};
      else
        c = c * 16 + static_cast<char32_t>(at);
    }
    if (digits.empty() || (c >= 0xD800 && c < 0xE000))
      raise<DataError>("line {} of the chat template: an escape sequence is not valid", line_);
    append_utf8(value, c);
    return digits.size();
  }

  std::string_view in_;
  TemplateRules rules_;
  size_t at_ = 0;
  int line_ = 1;
  bool strip_next_ = false;   // after "-"
  bool trim_newline_ = false; // after a block
  std::vector<Token> tokens_;
};

} // namespace

std::vector<Token> read_tokens(std::string_view source, const TemplateRules& rules) {
  return Lexer(source, rules).run();
}

} // namespace pentatron::data::tokenizer::chat
