#include "pentatron/data/tokenizer/pattern.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <vector>

#include "pentatron/base/error.h"
#include "pentatron/data/tokenizer/unicode.h"

namespace pentatron::data::tokenizer {

namespace {

constexpr int kMaxClassDepth = 32;

/// The code points for which `is` holds, as ranges of a class.
template <class F> std::string ranges(F&& is) {
  std::string out;
  for (char32_t c = 0; c < CharTables::kSize; ++c) {
    if (c == 0xD800) c = 0xE000;
    if (!is(c)) continue;
    const char32_t first = c;
    while (c + 1 < CharTables::kSize && c + 1 != 0xD800 && is(c + 1)) ++c;
    out += fmt::format("\\x{{{:x}}}", static_cast<uint32_t>(first));
    if (c != first) out += fmt::format("-\\x{{{:x}}}", static_cast<uint32_t>(c));
  }
  return out;
}

/// The categories that \p{name} stands for; false if it is no category.
bool in_category(Category category, std::string_view name) {
  constexpr std::string_view kNames =
      "CnCcCfCoCsLlLmLoLtLuMcMeMnNdNlNoPcPdPePfPiPoPsScSkSmSoZlZpZs";
  return kNames.substr(2 * static_cast<size_t>(category)).starts_with(name);
}
bool is_category_name(std::string_view name) {
  return name == "L" || name == "M" || name == "N" || name == "P" || name == "S" || name == "Lu" ||
         name == "Ll" || name == "Lt" || name == "Lm" || name == "Lo" || name == "Mn" ||
         name == "Mc" || name == "Nd" || name == "Nl" || name == "No" || name == "Sm" ||
         name == "So" || name == "Sc" || name == "Sk" || name == "Po" || name == "Pd";
}

/// What a category has gained since Unicode 14, PCRE2's version in Debian 12.
std::string new_members(std::string_view name) {
  static std::mutex mutex;
  static std::map<std::string, std::string, std::less<>> known;
  const std::lock_guard lock(mutex);
  auto found = known.find(name);
  if (found == known.end()) {
    const CharTables& tables = char_tables();
    found = known
                .emplace(name, ranges([&](char32_t c) {
                           return tables.age[c] == 3 && in_category(tables.category[c], name);
                         }))
                .first;
  }
  return found->second;
}

/// Whether \w holds; Oniguruma has other members in Latin-1 and leaves joiners out.
bool is_word_of(char32_t c, PatternFlavor flavor) {
  if (flavor == PatternFlavor::kRust) return is_word(c);
  if (c == 0xB2 || c == 0xB3 || c == 0xB9 || (c >= 0xBC && c <= 0xBE)) return true;
  return is_word(c) && c != 0x200C && c != 0x200D;
}

/// With what they gained since Unicode 14.
std::string categories(std::initializer_list<std::string_view> names) {
  std::string all;
  for (const std::string_view name : names)
    all += fmt::format("\\p{{{}}}", name) + new_members(name);
  return all;
}

/// The members of \s, \S, \w or \W for use inside a class.
std::string members(char escape, PatternFlavor flavor) {
  static const std::string space = ranges([](char32_t c) { return is_space(c); });
  static const std::string no_space = ranges([](char32_t c) { return !is_space(c); });
  if (escape == 's') return space;
  if (escape == 'S') return no_space;
  if (escape == 'W') return ranges([flavor](char32_t c) { return !is_word_of(c, flavor); });
  std::string all = "\\x{24b6}-\\x{24e9}\\x{1f130}-\\x{1f149}\\x{1f150}-\\x{1f169}"
                    "\\x{1f170}-\\x{1f189}";
  all += flavor == PatternFlavor::kRust ? "\\x{200c}\\x{200d}"
                                        : "\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}";
  return all + categories({"L", "M", "Nd", "Nl", "Pc"});
}

/// The members of [:name:] in Oniguruma, which takes the properties of Unicode, unlike PCRE2; empty
/// if there is no such class.
std::string posix_members(std::string_view name) {
  const auto seen = [](char32_t c) { // neither space, control character, surrogate nor unassigned
    const Category category = char_tables().category[c];
    return !is_space(c) && !in_category(category, "Cc") && !in_category(category, "Cn") &&
           !in_category(category, "Cs");
  };
  // What the properties have gained since Unicode 14 beside new letters.
  constexpr std::string_view kAlphabetic =
      "\\x{363}-\\x{36f}\\x{897}\\x{c04}\\x{cf3}\\x{f82}-\\x{f83}\\x{1dd3}-\\x{1de6}\\x{10d69}\\x{"
      "10efc}\\x{11080}-\\x{11081}\\x{11241}\\x{113b8}-\\x{113c0}\\x{113c2}\\x{113c5}\\x{113c7}-"
      "\\x{113ca}\\x{113cc}-\\x{113cd}\\x{11f00}-\\x{11f01}\\x{11f03}\\x{11f34}-\\x{11f3a}\\x{"
      "11f3e}-\\x{11f40}\\x{1611e}-\\x{1612e}\\x{1e08f}";
  constexpr std::string_view kLowercase =
      "\\x{10fc}\\x{a7f2}-\\x{a7f4}\\x{ab69}\\x{1e030}-\\x{1e06d}";
  const std::string alphabetic =
      "\\p{Alphabetic}" + new_members("L") + new_members("Nl") + std::string(kAlphabetic);
  if (name == "alpha") return alphabetic;
  if (name == "alnum") return alphabetic + categories({"Nd"});
  if (name == "word") return alphabetic + categories({"M", "Nd", "Pc"});
  if (name == "digit") return categories({"Nd"});
  if (name == "punct") return categories({"P", "S"});
  if (name == "upper") return "\\p{Uppercase}" + new_members("Lu");
  if (name == "lower") return "\\p{Lowercase}" + new_members("Ll") + std::string(kLowercase);
  if (name == "space") return members('s', PatternFlavor::kOniguruma);
  if (name == "blank") return "\\t\\p{Zs}";
  if (name == "graph") return ranges(seen);
  if (name == "print") return ranges(seen) + "\\p{Zs}";
  if (name == "cntrl") return "\\p{Cc}";
  if (name == "xdigit") return "0-9a-fA-F";
  if (name == "ascii") return "\\x00-\\x7f";
  return {};
}

/// The same in Rust, which takes ASCII alone.
std::string ascii_members(std::string_view name) {
  if (name == "alpha") return "a-zA-Z";
  if (name == "alnum") return "0-9a-zA-Z";
  if (name == "word") return "0-9a-zA-Z_";
  if (name == "digit") return "0-9";
  if (name == "punct") return "!-\\/:-@\\[-`{-~";
  if (name == "upper") return "A-Z";
  if (name == "lower") return "a-z";
  if (name == "space") return "\\t-\\r ";
  if (name == "blank") return "\\t ";
  if (name == "graph") return "!-~";
  if (name == "print") return " -~";
  if (name == "cntrl") return "\\x00-\\x1f\\x7f";
  if (name == "xdigit") return "0-9a-fA-F";
  if (name == "ascii") return "\\x00-\\x7f";
  return {};
}

class Translator {
 public:
  Translator(std::string_view pattern, PatternFlavor flavor) : in_(pattern), flavor_(flavor) {}

  std::string run() {
    while (at_ < in_.size()) {
      const char c = in_[at_];
      if (c == '\\') {
        escape(out_, /*in_class=*/false);
      } else if (c == '[') {
        out_ += character_class(0);
      } else if (c == '(') {
        group();
      } else {
        out_ += c;
        ++at_;
      }
    }
    return std::move(out_);
  }

 private:
  [[noreturn]] void unsupported(std::string_view what) const {
    raise<DataError>("the pattern '{}' uses {}, which is not supported", in_, what);
  }

  char peek(size_t ahead = 0) const { return at_ + ahead < in_.size() ? in_[at_ + ahead] : '\0'; }

  void escape(std::string& out, bool in_class) {
    const char c = peek(1);
    if (c == 's' || c == 'w') {
      out += in_class ? members(c, flavor_) : fmt::format("[{}]", members(c, flavor_));
      at_ += 2;
    } else if (c == 'S' || c == 'W') {
      out += in_class ? members(c, flavor_)
                      : fmt::format("[^{}]", members(c == 'S' ? 's' : 'w', flavor_));
      at_ += 2;
    } else if ((c == 'p' || c == 'P') && category(out, in_class)) {
      // done
    } else if (c == 'u') {
      unicode_escape(out);
    } else if (c == 'h' || c == 'H') {
      if (flavor_ != PatternFlavor::kOniguruma) unsupported("\\h");
      if (in_class && c == 'H') unsupported("\\H in a class");
      const std::string digits = "0-9a-fA-F";
      out += in_class ? digits : (c == 'h' ? "[" : "[^") + digits + "]";
      at_ += 2;
    } else if (c == 'C' || c == 'K' || c == 'G' || c == 'g' || c == 'k' || c == 'Q' || c == 'E' ||
               c == 'N' || c == 'y' || c == 'Y' || c == 'O' || c == 'M' || c == 'c') {
      unsupported(fmt::format("\\{}", c));
    } else if (c == '\0') {
      out += '\\'; // refused by the compiler
      ++at_;
    } else {
      out += '\\';
      out += c;
      at_ += 2;
    }
  }

  /// Translates \p{..} or \P{..} of a general category.
  bool category(std::string& out, bool in_class) {
    size_t end = at_ + 3;
    std::string_view name = in_.substr(std::min(at_ + 2, in_.size()), 1);
    if (name == "{") {
      end = in_.find('}', at_);
      if (end == std::string_view::npos) return false;
      name = in_.substr(at_ + 3, end - at_ - 3);
      ++end;
    }
    if (!is_category_name(name)) return false;
    const bool negated = in_[at_ + 1] == 'P';
    if (negated && in_class) {
      const CharTables& tables = char_tables();
      out += ranges([&](char32_t c) { return !in_category(tables.category[c], name); });
    } else {
      const std::string all = fmt::format("\\p{{{}}}", name) + new_members(name);
      out += in_class ? all : (negated ? "[^" : "[") + all + "]";
    }
    at_ = end;
    return true;
  }

  void unicode_escape(std::string& out) {
    size_t begin = at_ + 2, end = begin;
    if (peek(2) == '{') {
      ++begin;
      end = in_.find('}', begin);
      at_ = end == std::string_view::npos ? in_.size() : end + 1;
    } else {
      end = begin + 4;
      at_ = end;
    }
    if (end > in_.size() || end == begin || end - begin > 6 ||
        in_.substr(begin, end - begin).find_first_not_of("0123456789abcdefABCDEF") !=
            std::string_view::npos)
      unsupported("a damaged \\u");
    out += "\\x{" + std::string(in_.substr(begin, end - begin)) + "}";
  }

  void group() {
    if (peek(1) == '*') unsupported("(*");
    if (peek(1) != '?') {
      out_ += '(';
      ++at_;
      return;
    }
    out_ += "(?";
    at_ += 2;
    const char c = peek();
    if (c == ':' || c == '=' || c == '!' || c == '>' || c == '#' || c == '<' ||
        (c == 'P' && peek(1) == '<'))
      return;
    // Inline options. In Oniguruma's (Ruby's) language m is what s is elsewhere.
    while (at_ < in_.size() && in_[at_] != ':' && in_[at_] != ')') {
      char option = in_[at_++];
      if (option == 'm' && flavor_ == PatternFlavor::kOniguruma) option = 's';
      if (option != 'i' && option != 's' && option != 'm' && option != 'x' && option != '-')
        unsupported(fmt::format("(?{}", option));
      out_ += option;
    }
  }

  /// Translates the class that begins at at_ into an expression for one character.
  std::string character_class(int depth) {
    if (depth > kMaxClassDepth) unsupported("classes nested so deep");
    ++at_;
    const bool negated = peek() == '^';
    if (negated) ++at_;
    std::vector<std::string> intersected; // expressions for one character each
    std::string plain;                    // members of the current operand
    std::vector<std::string> nested;      // classes within the current operand
    const auto finish_operand = [&] {
      std::string operand;
      if (!plain.empty()) operand = "[" + plain + "]";
      for (const std::string& inner : nested) operand += (operand.empty() ? "" : "|") + inner;
      if (operand.empty()) unsupported("an empty class");
      intersected.push_back(nested.empty() ? operand : "(?:" + operand + ")");
      plain.clear();
      nested.clear();
    };
    for (bool first = true;; first = false) {
      if (at_ >= in_.size()) unsupported("a class without an end");
      const char c = in_[at_];
      if (c == ']' && !first) {
        ++at_;
        break;
      }
      if (c == '\\') {
        escape(plain, /*in_class=*/true);
      } else if (c == '[' && peek(1) == ':') {
        const size_t end = in_.find(":]", at_ + 2);
        if (end == std::string_view::npos) unsupported("a damaged [:name:]");
        const std::string_view name = in_.substr(at_ + 2, end - at_ - 2);
        const std::string known =
            flavor_ == PatternFlavor::kRust ? ascii_members(name) : posix_members(name);
        if (known.empty()) unsupported(fmt::format("[:{}:]", name));
        plain += known;
        at_ = end + 2;
      } else if (c == '[') {
        nested.push_back(character_class(depth + 1));
      } else if (c == '&' && peek(1) == '&') {
        at_ += 2;
        finish_operand();
      } else {
        if (c == ']' || c == '^') plain += '\\';
        plain += c;
        ++at_;
      }
    }
    if (intersected.empty() && nested.empty()) return (negated ? "[^" : "[") + plain + "]";
    finish_operand();
    std::string all;
    for (size_t i = 0; i + 1 < intersected.size(); ++i) all += "(?=" + intersected[i] + ")";
    all += intersected.back();
    return negated ? "(?:(?!" + all + ")(?s:.))" : "(?:" + all + ")";
  }

  std::string_view in_;
  PatternFlavor flavor_;
  size_t at_ = 0;
  std::string out_;
};

} // namespace

std::string translate_pattern(std::string_view pattern, PatternFlavor flavor) {
  return Translator(pattern, flavor).run();
}

std::string escape_pattern(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (std::string_view("\\.+*?()|[]{}^$#&-~").find(c) != std::string_view::npos) out += '\\';
    out += c;
  }
  return out;
}

} // namespace pentatron::data::tokenizer
