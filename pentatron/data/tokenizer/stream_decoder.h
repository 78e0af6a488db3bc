/// Tokens to text one at a time, in whole characters.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "pentatron/data/tokenizer.h"

namespace pentatron::data {

/// The pieces that push() and finish() return, put together, are what the tokenizer decodes from
/// all tokens at once. A character that needs more tokens is held back until they come. Memory and
/// time per token do not grow with the text. The tokenizer must outlive it.
class StreamDecoder {
 public:
  struct Options {
    bool with_special = false; ///< decode_with_special() instead of decode()
  };
  explicit StreamDecoder(const Tokenizer& tokenizer) : tokenizer_(&tokenizer) {}
  StreamDecoder(const Tokenizer& tokenizer, const Options& options)
      : tokenizer_(&tokenizer), options_(options) {}

  /// Takes the next token; returns the text that is complete now, often a word, sometimes nothing.
  std::string push(int64_t token);
  /// What is left: bytes that never became a character are U+FFFD. Then a new text may begin.
  std::string finish();

 private:
  std::string decode(const std::vector<int64_t>& tokens) const;

  const Tokenizer* tokenizer_;
  Options options_;
  std::vector<int64_t> tokens_; ///< tokens shown last, then tokens held back
  size_t shown_ = 0;            ///< how many of tokens_ are shown
  std::string shown_text_;      ///< their text
};

} // namespace pentatron::data
