/// Patterns that cut a text into words.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace pentatron::data::tokenizer {

/// A part of a text, [begin, end); none if begin is npos.
struct Match {
  size_t begin = std::string_view::npos;
  size_t end = 0;
  bool found() const { return begin != std::string_view::npos; }
};

/// Immutable: any number of threads may use one.
class Splitter {
 public:
  virtual ~Splitter() = default;
  /// The first match that begins at or after `from`, a start of a character, in valid UTF-8.
  virtual Match find(std::string_view text, size_t from) const = 0;
};

/// Whose regular expressions a pattern was written for.
enum class PatternFlavor : uint8_t {
  kOniguruma, ///< tokenizer.json: ^ and $ at lines
  kRust,      ///< tiktoken: ^ and $ at the text's ends
};

/// The matches of a regular expression. The patterns of well-known tokenizers are matched by
/// hand-written scanners (scanners.cpp), all others by PCRE2. Throws DataError, which names the
/// pattern, for an invalid pattern or unsupported syntax; find() throws it if a search exceeds its
/// limits.
std::unique_ptr<Splitter> make_splitter(const std::string& pattern, PatternFlavor flavor);

/// Like make_splitter(), but always uses PCRE2: the reference for the scanners.
std::unique_ptr<Splitter> make_regex_splitter(const std::string& pattern, PatternFlavor flavor);

/// The scanner of a well-known pattern, or null.
std::unique_ptr<Splitter> find_scanner(std::string_view pattern);

/// The pattern of GPT-2, which the ByteLevel pre-tokenizer uses.
extern const std::string_view kGpt2Pattern;
/// Of cl100k_base (GPT-4) and Llama 3, of Qwen 2, and of o200k_base (GPT-4o).
extern const std::string_view kCl100kPattern;
extern const std::string_view kTiktokenCl100kPattern; ///< differs at the end of a text
extern const std::string_view kQwen2Pattern;
extern const std::string_view kO200kPattern;

/// The pattern of literal text.
std::string escape_pattern(std::string_view text);

} // namespace pentatron::data::tokenizer
