/// Regular expressions as Python's `re` reads them, for task files.
///
/// The common language of Python and PCRE2; \Z is the text's end, and classes are those of Unicode.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace pentatron::data {

/// Immutable: any number of threads may use one.
class Regex {
 public:
  /// Throws DataError, which names the pattern, for one that is damaged or too long.
  explicit Regex(const std::string& pattern);
  ~Regex();
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;

  /// A match: what its groups have captured, without the whole if there is a group; empty texts for
  /// groups that took no part.
  using Groups = std::vector<std::string>;
  /// All matches, as re.findall: left to right, none inside another. `text` is valid UTF-8. Throws
  /// DataError for a search beyond all bounds.
  std::vector<Groups> find_all(std::string_view text) const;

  /// re.sub: `replacement` may name groups as \\1 or \\g<1>; `count` 0: all. Throws DataError if
  /// the result has more than `max_bytes`.
  std::string replace(std::string_view text, std::string_view replacement, int64_t count = 0,
                      size_t max_bytes = size_t{64} << 20) const;

 private:
  struct Code;
  std::unique_ptr<Code> code_;
};

} // namespace pentatron::data
