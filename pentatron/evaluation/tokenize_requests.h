/// From requests to tokens, by the rules of lm-eval's Hugging Face models.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "pentatron/data/tokenizer.h"
#include "pentatron/evaluation/evaluate_tasks.h"
#include "pentatron/evaluation/score_tokens.h"

namespace pentatron::evaluation {

/// Contexts are encoded with the tokenizer's special tokens, and white space at their end counts to
/// the continuation. A continuation's tokens are those of context and continuation encoded
/// together, from as many on as the context has alone. What is longer than max_length loses its
/// beginning.
class RequestTokens {
 public:
  /// `task`: for messages.
  RequestTokens(const data::Tokenizer& tokenizer, const TextEnds& ends, int64_t max_length,
                std::string task);

  /// One sequence of a continuation; of a text that is read through, windows which predict each of
  /// its tokens once, with one token of context at least. Throws DataError for a continuation
  /// without tokens or with more than max_length.
  std::vector<ScoredTokens> scored(const Request& request) const;
  /// What a generated text follows, with room for `new_tokens`.
  std::vector<int64_t> prompt(const Request& request, int64_t new_tokens) const;

 private:
  std::vector<int64_t> encode(std::string_view text, bool with_special) const;
  int64_t prefix() const;
  ScoredTokens pair(const Request& request) const;
  std::vector<ScoredTokens> windows(const Request& request) const;

  const data::Tokenizer& tokenizer_;
  const TextEnds& ends_;
  int64_t max_length_;
  std::string task_;
};

} // namespace pentatron::evaluation
