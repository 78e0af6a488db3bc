/// The replacement rules of SentencePiece ("precompiled charsmap"): a trie of what to replace.
///
/// Source: the format is a u32 with the bytes of a double array trie (darts-clone's units), the
/// trie, and the replacements as text with a zero byte after each.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace pentatron::data::tokenizer {

class Charsmap {
 public:
  /// Throws DataError for bytes that are not of this format. Empty bytes have no rules.
  explicit Charsmap(std::string_view bytes);

  struct Rule {
    size_t length = 0; ///< of what is replaced; 0: no rule
    std::string_view replacement;
  };
  /// The rule for the longest beginning of `text`.
  Rule longest(std::string_view text) const { return search(text, /*longest=*/true); }
  /// The rule for the shortest.
  Rule shortest(std::string_view text) const { return search(text, /*longest=*/false); }
  bool empty() const { return units_.empty(); }

 private:
  Rule search(std::string_view text, bool longest) const;

  std::vector<uint32_t> units_;
  std::string replacements_;
};

/// The bytes of base64. Throws DataError for what is not.
std::string decode_base64(std::string_view text);

} // namespace pentatron::data::tokenizer
