#include "pentatron/data/tokenizer/chat/lexer.h"

#include <algorithm>
#include <array>

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
      } else {
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
      const bool dash = rest[0] == '-' && rest.substr(1).starts_with(end);
      if (dash || (depth == 0 && rest.starts_with(end))) {
        add(print ? TokenKind::kEndPrint : TokenKind::kEndBlock, "");
        close(dash, at_ + (dash ? 3 : 2), /*trims=*/!print);
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

  void number(std::string_view rest) {
    size_t n = 1;
    bool real = false;
    while (n < rest.size() &&
           (is_digit(rest[n]) || rest[n] == '_' ||
            (rest[n] == '.' && !real && n + 1 < rest.size() && is_digit(rest[n + 1])))) {
      real = real || rest[n] == '.';
      ++n;
    }
    if (n + 1 < rest.size() && (rest[n] == 'e' || rest[n] == 'E')) {
      const size_t sign = rest[n + 1] == '-' || rest[n + 1] == '+' ? 1 : 0;
      size_t end = n + 1 + sign;
      while (end < rest.size() && is_digit(rest[end])) ++end;
      if (end > n + 1 + sign && end - n < 5) {
        real = true;
        n = end;
      }
    }
    std::string digits(rest.substr(0, n));
    std::erase(digits, '_');
    if (digits.size() > 18)
      raise<DataError>("line {} of the chat template: the number {} is too long", line_, digits);
    add(real ? TokenKind::kFloat : TokenKind::kInteger, std::move(digits));
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
