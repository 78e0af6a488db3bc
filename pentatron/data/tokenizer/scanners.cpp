// Each scanner does what its pattern says, alternative by alternative; tests compare them with
// PCRE2 on random text.
#include <array>

#include "pentatron/data/tokenizer/splitter.h"
#include "pentatron/data/tokenizer/unicode.h"

namespace pentatron::data::tokenizer {

const std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
const std::string_view kCl100kPattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const std::string_view kTiktokenCl100kPattern =
    R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s)";
const std::string_view kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const std::string_view kO200kPattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

namespace {

/// A text and the classes of its characters.
class Reader {
 public:
  explicit Reader(std::string_view text)
      : p_(text.data()), n_(text.size()), flags_(char_tables().flags.data()) {}

  size_t size() const { return n_; }
  char operator[](size_t i) const { return p_[i]; }
  bool is_newline(size_t i) const { return p_[i] == '\n' || p_[i] == '\r'; }

  struct Char {
    uint8_t flags;
    uint32_t size;
  };
  Char at(size_t i) const {
    const auto byte = static_cast<unsigned char>(p_[i]);
    if (byte < 0x80) return {flags_[byte], 1};
    const CodePoint c = read_code_point(p_ + i);
    return {flags_[c.value], c.size};
  }
  /// The end of the run from `i` of characters with any of `wanted`.
  size_t run_of(size_t i, uint8_t wanted) const {
    while (i < n_) {
      const Char c = at(i);
      if ((c.flags & wanted) == 0) break;
      i += c.size;
    }
    return i;
  }
  /// The end of the run from `i` of characters with none of `unwanted`.
  size_t run_without(size_t i, uint8_t unwanted) const {
    while (i < n_) {
      const Char c = at(i);
      if ((c.flags & unwanted) != 0) break;
      i += c.size;
    }
    return i;
  }
  size_t run_of_newlines(size_t i, bool with_slash = false) const {
    while (i < n_ && (is_newline(i) || (with_slash && p_[i] == '/'))) ++i;
    return i;
  }
  /// The end of at most `most` numbers from `i`; 0 is any number of them.
  size_t numbers(size_t i, int most) const {
    if (most == 0) return run_of(i, kNumber);
    for (int count = 0; count < most && i < n_; ++count) {
      const Char c = at(i);
      if ((c.flags & kNumber) == 0) break;
      i += c.size;
    }
    return i;
  }
  /// The start of the last character before `i`.
  size_t before(size_t i) const {
    do {
      --i;
    } while ((static_cast<unsigned char>(p_[i]) & 0xC0) == 0x80);
    return i;
  }
  /// The end of \s+(?!\S)|\s+ at `i`, which is white space.
  size_t spaces(size_t i) const {
    const size_t end = run_of(i, kSpace);
    if (end == n_) return end;
    const size_t last = before(end);
    return last > i ? last : end;
  }
  /// The end of \s*[\r\n]+|\s+(?!\S)|\s+ at `i`, which is white space.
  size_t spaces_to_newline(size_t i) const {
    const size_t end = run_of(i, kSpace);
    for (size_t k = end; k > i; --k) {
      if (is_newline(k - 1)) return k;
    }
    if (end == n_) return end;
    const size_t last = before(end);
    return last > i ? last : end;
  }
  /// The end of 's|'t|'re|'ve|'m|'ll|'d at `i`, or `i`.
  size_t contraction(size_t i) const {
    if (n_ - i < 2 || p_[i] != '\'') return i;
    return suffix(i, p_[i + 1], n_ - i > 2 ? p_[i + 2] : '\0');
  }
  /// The same in any case; U+017F is another s.
  size_t contraction_any_case(size_t i) const {
    if (n_ - i < 2 || p_[i] != '\'') return i;
    const char second = n_ - i > 2 ? p_[i + 2] : '\0';
    if (p_[i + 1] == '\xC5' && second == '\xBF') return i + 3;
    return suffix(i, lower(p_[i + 1]), lower(second));
  }

 private:
  static char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; }
  static size_t suffix(size_t i, char a, char b) {
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return i + 2;
    if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l')) return i + 3;
    return i;
  }

  const char* p_;
  size_t n_;
  const uint8_t* flags_;
};

/// A scanner whose pattern matches somewhere at once or skips a character: Derived::match(reader,
/// i) gives the end of the match at i, or i.
template <class Derived> class Scanner : public Splitter {
 public:
  Match find(std::string_view text, size_t from) const override {
    const Reader reader(text);
    for (size_t i = from; i < text.size(); i += reader.at(i).size) {
      const size_t end = static_cast<const Derived&>(*this).match(reader, i);
      if (end > i) return {i, end};
    }
    return {};
  }
};

class Gpt2Scanner final : public Scanner<Gpt2Scanner> {
 public:
  size_t match(const Reader& r, size_t i) const {
    if (r[i] == '\'') {
      if (const size_t end = r.contraction(i); end > i) return end;
    }
    const size_t begin = r[i] == ' ' && i + 1 < r.size() ? i + 1 : i;
    const Reader::Char c = r.at(begin);
    if ((c.flags & kLetter) != 0) return r.run_of(begin + c.size, kLetter);
    if ((c.flags & kNumber) != 0) return r.run_of(begin + c.size, kNumber);
    if ((c.flags & kSpace) == 0) return r.run_without(begin + c.size, kSpace | kLetter | kNumber);
    return r.spaces(i);
  }
};

struct Cl100kOptions {
  int max_numbers = 3;
  uint8_t letters = kLetter;
  bool whole_tail = false; ///< \s++$ before \s*[\r\n]
};

/// (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|...
class Cl100kScanner final : public Scanner<Cl100kScanner> {
 public:
  explicit Cl100kScanner(const Cl100kOptions& options) : options_(options) {}
  size_t match(const Reader& r, size_t i) const {
    if (r[i] == '\'') {
      if (const size_t end = r.contraction_any_case(i); end > i) return end;
    }
    const uint8_t letters = options_.letters;
    const Reader::Char c = r.at(i);
    const size_t next = i + c.size;
    if ((c.flags & kLetter) != 0) return r.run_of(next, letters);
    if ((c.flags & kNumber) != 0) return r.numbers(i, options_.max_numbers);
    if (!r.is_newline(i) && next < r.size() && (r.at(next).flags & letters) != 0)
      return r.run_of(next, letters);
    if ((c.flags & letters) != 0) return next; // a mark alone
    const uint8_t not_other = static_cast<uint8_t>(kSpace | kNumber | letters);
    size_t begin = i;
    if (r[i] == ' ' && next < r.size()) begin = next;
    if ((r.at(begin).flags & not_other) == 0)
      return r.run_of_newlines(r.run_without(begin, not_other));
    if (options_.whole_tail) {
      const size_t end = r.run_of(i, kSpace);
      if (end == r.size()) return end;
    }
    return r.spaces_to_newline(i);
  }

 private:
  Cl100kOptions options_;
};

struct O200kOptions {
  int max_numbers = 3;
  bool contractions = true;
};

/// Words change where upper case follows lower case.
class O200kScanner final : public Scanner<O200kScanner> {
 public:
  explicit O200kScanner(const O200kOptions& options) : options_(options) {}
  size_t match(const Reader& r, size_t i) const {
    const Reader::Char c = r.at(i);
    if ((c.flags & kNumber) != 0) return r.numbers(i, options_.max_numbers);
    const bool may_lead = (c.flags & kLetter) == 0 && !r.is_newline(i);
    const size_t after = may_lead ? i + c.size : i;
    size_t end = may_lead ? lower_word(r, after) : 0;
    if (end == 0) end = lower_word(r, i);
    if (end == 0 && may_lead) end = upper_word(r, after);
    if (end == 0) end = upper_word(r, i);
    if (end != 0) return options_.contractions ? r.contraction_any_case(end) : end;
    constexpr uint8_t kNotOther = kSpace | kLetter | kNumber;
    size_t begin = i;
    if (r[i] == ' ' && i + 1 < r.size()) begin = i + 1;
    if ((r.at(begin).flags & kNotOther) == 0)
      return r.run_of_newlines(r.run_without(begin, kNotOther), /*with_slash=*/true);
    return r.spaces_to_newline(i);
  }

 private:
  /// The end of [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+ at `i`, or 0.
  static size_t lower_word(const Reader& r, size_t i) {
    const size_t upper_end = r.run_of(i, kUpperLike);
    const size_t end = r.run_of(upper_end, kLowerLike);
    if (end > upper_end) return end;
    // Give back upper case up to the last character that is of both kinds.
    for (size_t k = upper_end; k > i;) {
      const size_t last = r.before(k);
      if ((r.at(last).flags & kLowerLike) != 0) return k;
      k = last;
    }
    return 0;
  }
  static size_t upper_word(const Reader& r, size_t i) {
    const size_t upper_end = r.run_of(i, kUpperLike);
    return upper_end > i ? r.run_of(upper_end, kLowerLike) : 0;
  }

  O200kOptions options_;
};

/// \p{N}{1,most}
class NumberScanner final : public Scanner<NumberScanner> {
 public:
  explicit NumberScanner(int most) : most_(most) {}
  size_t match(const Reader& r, size_t i) const { return r.numbers(i, most_); }

 private:
  int most_;
};

/// [一-龥぀-ゟ゠-ヿ]+
class HanKanaScanner final : public Splitter {
 public:
  Match find(std::string_view text, size_t from) const override {
    size_t i = from;
    while (i < text.size() && !is_member(text, i)) i += utf8_length(text[i]);
    if (i >= text.size()) return {};
    size_t end = i;
    while (end < text.size() && is_member(text, end)) end += 3;
    return {i, end};
  }

 private:
  static bool is_member(std::string_view text, size_t i) {
    if ((text[i] & '\xF0') != '\xE0') return false;
    const char32_t c = read_code_point(text.data() + i).value;
    return (c >= 0x4E00 && c <= 0x9FA5) || (c >= 0x3040 && c <= 0x30FF);
  }
};

constexpr std::string_view kDeepSeekPattern =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

class DeepSeekScanner final : public Scanner<DeepSeekScanner> {
 public:
  size_t match(const Reader& r, size_t i) const {
    const Reader::Char c = r.at(i);
    const size_t next = i + c.size;
    constexpr uint8_t kWord = kLetter | kMark, kSign = kPunctuation | kSymbol;
    if (c.size == 1 && (c.flags & kSign) != 0) { // the 32 signs of ASCII
      size_t end = next;
      while (end < r.size() && is_ascii_letter(r[end])) ++end;
      if (end > next) return end;
    }
    if ((c.flags & (kLetter | kSign)) == 0 && !r.is_newline(i) && next < r.size()) {
      if (const size_t end = r.run_of(next, kWord); end > next) return end;
    }
    if ((c.flags & kWord) != 0) return r.run_of(next, kWord);
    size_t begin = i;
    if (r[i] == ' ' && next < r.size()) begin = next;
    if ((r.at(begin).flags & kSign) != 0) return r.run_of_newlines(r.run_of(begin, kSign));
    if ((c.flags & kSpace) != 0) return r.spaces_to_newline(i);
    return i;
  }

 private:
  static bool is_ascii_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
};

template <class S, auto... kArguments> std::unique_ptr<Splitter> make() {
  return std::make_unique<S>(kArguments...);
}

struct Known {
  std::string_view pattern;
  std::unique_ptr<Splitter> (*make)();
};

const std::array kKnown = {
    Known{kGpt2Pattern, make<Gpt2Scanner>},
    Known{R"('(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
          make<Gpt2Scanner>},
    Known{R"('(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s)",
          make<Gpt2Scanner>},
    Known{kCl100kPattern, make<Cl100kScanner, Cl100kOptions{}>},
    Known{kTiktokenCl100kPattern, make<Cl100kScanner, Cl100kOptions{.whole_tail = true}>},
    Known{
        R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+)",
        make<Cl100kScanner, Cl100kOptions{}>},
    Known{kQwen2Pattern, make<Cl100kScanner, Cl100kOptions{.max_numbers = 1}>},
    Known{
        R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
        make<Cl100kScanner, Cl100kOptions{.max_numbers = 1, .letters = kLetter | kMark}>},
    Known{kO200kPattern, make<O200kScanner, O200kOptions{}>},
    Known{
        R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
        make<O200kScanner, O200kOptions{.max_numbers = 1, .contractions = false}>},
    Known{R"(\p{N}{1,3})", make<NumberScanner, 3>},
    Known{R"(\p{N})", make<NumberScanner, 1>},
    Known{"[一-龥぀-ゟ゠-ヿ]+", make<HanKanaScanner>},
    Known{kDeepSeekPattern, make<DeepSeekScanner>},
};

} // namespace

std::unique_ptr<Splitter> find_scanner(std::string_view pattern) {
  for (const Known& known : kKnown) {
    if (known.pattern == pattern) return known.make();
  }
  return nullptr;
}

} // namespace pentatron::data::tokenizer
