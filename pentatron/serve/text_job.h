/// A request for one text, and the receiver of its tokens.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "pentatron/generate/generate.h"
#include "pentatron/generate/sampling.h"

namespace pentatron::serve {

struct ScoredToken {
  int64_t token = 0;
  double logprob = 0;                    ///< of a text with scores; else 0
  std::vector<generate::Drawn> top = {}; ///< the likeliest tokens at its place, in order
};

/// Takes the tokens of one text. Called on the model's thread, in the order of the members.
class TextSink {
 public:
  virtual ~TextSink() = default;
  /// The model begins to read the prompt; it takes over what it read of `reused` tokens before.
  virtual void begin(int64_t reused) = 0;
  /// A token of the prompt, from the second on; only if the job asks for scores of the prompt.
  virtual void prompt_token(const ScoredToken& token) = 0;
  /// A new token; return false to end the text after it.
  virtual bool token(const ScoredToken& token) = 0;
  /// Exactly one of these is the last call.
  virtual void finish(generate::Finish why) = 0;
  virtual void fail(const std::string& sentence) = 0;
  virtual void cancel() = 0;
};

struct TextJob {
  std::vector<int64_t> prompt; ///< at least one token
  std::vector<int64_t> source; ///< of a model with an encoder: what it reads
  int64_t variant = 0;         ///< of the weights: 0 the base, i the i-th adapter
  generate::Sampling sampling;
  /// Token i is drawn with Stream(seed, "sample") at (number, i), as generate() does.
  uint64_t seed = 0, number = 0;
  int64_t max_new_tokens = 0;
  std::vector<int64_t> stop_tokens;
  bool scores = false;        ///< log-probabilities of new tokens
  bool prompt_scores = false; ///< and of the prompt's
  int64_t top = 0;            ///< with scores: how many of the likeliest tokens
  bool after_first = false;   ///< begins when the first job of its request has read its prompt, so
                              ///< that it takes over the pages
  std::shared_ptr<TextSink> sink;
};

} // namespace pentatron::serve
