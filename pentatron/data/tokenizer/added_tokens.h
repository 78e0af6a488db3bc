/// Tokens that are found in the text before anything else looks at it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "pentatron/base/json.h"
#include "pentatron/data/tokenizer/normalizer.h"
#include "pentatron/data/tokenizer/trie.h"
#include "pentatron/data/tokenizer/vocabulary.h"

namespace pentatron::data::tokenizer {

struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool single_word = false; ///< matches only if no word continues before or after it
  bool lstrip = false;      ///< takes white space before it along
  bool rstrip = false;      ///< includes white space after it
  bool normalized = true;   ///< found in the normalized text, not in the text as it came
  bool special = false;     ///< left out when text is shown
};

/// A part of a text: a token, or text between tokens (token = -1).
struct TextPart {
  size_t begin, end;
  int32_t token;
};

/// The member "added_tokens" of tokenizer.json.
class AddedTokens {
 public:
  AddedTokens() = default;
  AddedTokens(const Json& json, const Vocabulary& vocabulary, const Normalizer* normalizer);
  AddedTokens(std::vector<AddedToken> tokens, const Vocabulary& vocabulary,
              const Normalizer* normalizer);

  /// Cuts `text` at the tokens that are found before normalization, or after it.
  void split(std::string_view text, bool normalized, std::vector<TextPart>& parts) const;

  struct Entry {
    AddedToken token;
    std::string text; ///< normalized if the token is
  };
  /// By id.
  const std::map<int32_t, Entry>& entries() const { return entries_; }
  bool is_special(std::string_view content) const {
    return special_.contains(std::string(content));
  }

 private:
  struct Finder {
    Trie trie;
    std::array<bool, 256> first = {};
  };
  bool stands(const AddedToken& token, std::string_view text, size_t begin, size_t end) const;

  std::map<int32_t, Entry> entries_;
  std::unordered_set<std::string> special_;
  Finder raw_, normalized_;
};

} // namespace pentatron::data::tokenizer
