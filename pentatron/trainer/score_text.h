/// How well a model predicts texts: loss per token, perplexity and bits per byte.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "pentatron/checkpoint/model_source.h"
#include "pentatron/data/tokenizer.h"
#include "pentatron/parallelize/parallelize.h"
#include "pentatron/trainer/config.h"

namespace pentatron::trainer {

struct TextScore {
  double nll = 0;                               ///< sum over the predicted tokens of -ln p
  int64_t tokens = 0, bytes = 0, documents = 0; ///< tokens and bytes that are predicted
  bool bytes_known = true; ///< false: a tokenizer does not tell which bytes a first token is

  double loss() const { return nll / static_cast<double>(tokens); }
  double bits_per_byte() const; ///< NaN if it cannot be known
};

struct TextScoring {
  Precision dtype = Precision::kFp32;
  DeviceKind device = DeviceKind::kAuto;
  int64_t context = 0;         ///< tokens of a window; 0: the model's context
  int64_t stride = 0;          ///< tokens between two windows; 0: the context
  int64_t batch_tokens = 2048; ///< at most, padded, of the windows that run at the same time,
                               ///< unless one alone has more
};

/// Scores documents one after another. A document begins after the token that the tokenizer puts in
/// front of a text, or else its end-of-document token, so that every token of the text is
/// predicted. Without either, the first token is not predicted, and its bytes do not count.
///
/// A document longer than the context is cut into windows. Each token is predicted once, by the
/// window that ends at or after it: window i predicts the tokens [C + (i - 1) S, C + i S) with the
/// C - S tokens or more before them in view, for context C and stride S. The last window ends with
/// the document. With S = C these are the windows of lm-eval's rolling log-likelihood.
class TextScorer {
 public:
  /// Reads the weights of `source`. Throws ConfigError if context or stride are out of range.
  TextScorer(checkpoint::ModelSource& source, const data::Tokenizer& tokenizer,
             const TextScoring& options);

  /// Throws DataError for text that is not UTF-8, and for tokens outside the model's vocabulary.
  /// `done` hears after each window which share of the document has been read.
  void add(std::string_view document, const std::function<void(double)>& done = {});
  TextScore finish();

  /// Of the batches that have run, with their padding.
  int64_t largest_batch_tokens() const { return largest_batch_tokens_; }

 private:
  struct Window {
    std::vector<int64_t> inputs, labels; ///< of equal length; label -100: not predicted
  };
  void count_bytes(std::string_view document, int64_t first_id);
  void push(Window window);
  void run();

  const data::Tokenizer& tokenizer_;
  TextScoring options_;
  parallelize::RankModel model_;
  at::Device device_;
  std::vector<int64_t> prefix_; ///< at most one token
  std::vector<Window> windows_;
  size_t longest_ = 0;
  int64_t largest_batch_tokens_ = 0;
  TextScore score_;
};

} // namespace pentatron::trainer
