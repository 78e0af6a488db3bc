/// Converts new tokens to text that can be shown, and a prompt to tokens.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "pentatron/data/tokenizer.h"
#include "pentatron/data/tokenizer/stream_decoder.h"
#include "pentatron/generate/stop_strings.h"

namespace pentatron::generate {

/// The tokens of a text to continue, with what the tokenizer puts around a text. A text without
/// tokens is the begin token (`bos`, as text), or else the end of a document, with which a
/// tokenizer that has no files begins; empty if the tokenizer has neither.
std::vector<int64_t> prompt_tokens(const data::Tokenizer& tokenizer, const std::string& text,
                                   const std::string& bos = {});

/// The text of new tokens, one at a time. The prompt's end is known to it, so that a space or a
/// character that begins in the prompt is right.
class TextWriter {
 public:
  TextWriter(const data::Tokenizer& tokenizer, const std::vector<int64_t>& prompt,
             const std::vector<std::string>& stops);
  /// What can be shown now.
  std::string push(int64_t token);
  /// Whether a stop string has come.
  bool stopped() const { return stops_.found(); }
  std::string finish();
  /// All that was returned.
  const std::string& text() const { return text_; }

 private:
  data::StreamDecoder decoder_;
  generate::StopStrings stops_;
  std::string text_;
};

} // namespace pentatron::generate
