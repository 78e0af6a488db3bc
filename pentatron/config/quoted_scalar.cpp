#include "pentatron/config/quoted_scalar.h"

#include "pentatron/base/utf8.h"

namespace pentatron::config {

namespace {

bool is_blank(char c) {
  return c == ' ' || c == '\t';
}
bool is_break(char c) {
  return c == '\n' || c == '\r';
}

class Folder {
 public:
  explicit Folder(std::string_view text) : text_(text), quote_(text[0]) {}

  std::optional<std::string> run() {
    bool several = false;
    for (at_ = 1; at_ < text_.size();) {
      const char c = text_[at_];
      if (is_break(c)) {
        several = true;
        fold();
      } else if (c == quote_) {
        if (quote_ == '"' || at_ + 1 >= text_.size() || text_[at_ + 1] != quote_)
          return several ? std::optional(out_) : std::nullopt;
        add(2, "'");
      } else if (c == '\\' && quote_ == '"') {
        several = escape() || several;
      } else {
        out_ += c;
        ++at_;
        if (!is_blank(c)) kept_ = out_.size();
      }
    }
    return std::nullopt;
  }

 private:
  void add(size_t read, std::string_view value) {
    at_ += read;
    out_ += value;
    kept_ = out_.size();
  }
  void skip_blanks() {
    while (at_ < text_.size() && is_blank(text_[at_])) ++at_;
  }
  void skip_break() { at_ += text_.substr(at_, 2) == "\r\n" ? 2 : 1; }
  /// Empty lines, and the blanks before the next one's text; how many there were.
  int skip_empty_lines() {
    int lines = 0;
    for (skip_blanks(); at_ < text_.size() && is_break(text_[at_]); skip_blanks()) {
      skip_break();
      ++lines;
    }
    return lines;
  }
  void fold() {
    out_.resize(kept_); // blanks at the end of a line
    skip_break();
    const int empty = skip_empty_lines();
    out_ += empty == 0 ? std::string(" ") : std::string(static_cast<size_t>(empty), '\n');
    kept_ = out_.size();
  }

  /// Whether it was a line break.
  bool escape() {
    const char c = at_ + 1 < text_.size() ? text_[at_ + 1] : '\\';
    if (is_break(c)) {
      kept_ = out_.size();
      ++at_;
      skip_break();
      add(0, std::string(static_cast<size_t>(skip_empty_lines()), '\n'));
      return true;
    }
    const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (digits > 0) {
      const std::string hex(text_.substr(at_ + 2, digits));
      append_utf8(out_, static_cast<char32_t>(std::stoul(hex, nullptr, 16)));
      add(2 + digits, "");
      return false;
    }
    constexpr std::string_view kNames = "0abt\tnvfre";
    constexpr std::string_view kValues = std::string_view("\0\a\b\t\t\n\v\f\r\x1B", 10);
    if (const size_t known = kNames.find(c); known != std::string_view::npos)
      add(2, kValues.substr(known, 1));
    else
      add(2, c == 'N'   ? "\u0085"
             : c == '_' ? "\u00A0"
             : c == 'L' ? "\u2028"
             : c == 'P' ? "\u2029"
                        : text_.substr(at_ + 1, 1));
    return false;
  }

  std::string_view text_;
  char quote_;
  size_t at_ = 0;
  std::string out_;
  size_t kept_ = 0; ///< bytes of out_ that are no blanks at the end of a line
};

} // namespace

std::optional<std::string> folded_scalar(std::string_view text) {
  if (text.empty() || (text[0] != '"' && text[0] != '\'')) return std::nullopt;
  return Folder(text).run();
}

} // namespace pentatron::config
