/// Which tokens of a text a model has to restore: whole words for BERT, spans for T5.
/// Source: Devlin et al. 2018 (arXiv:1810.04805) sec. 3.1, with whole words as in its later
/// release; Raffel et al. 2019 (arXiv:1910.10683) sec. 3.1.4.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "pentatron/base/philox.h"

namespace pentatron::data {

/// Draws from a stream at addresses (sample, 0), (sample, 1), ...
class Draws {
 public:
  Draws(const Stream& stream, uint64_t sample) : stream_(stream), sample_(sample) {}
  double uniform() { return stream_.uniform(sample_, next_++); }
  uint64_t below(uint64_t n) { return stream_.below(n, sample_, next_++); }

 private:
  Stream stream_;
  uint64_t sample_;
  uint64_t next_ = 0;
};

struct MaskOptions {
  double rate = 0.15;        ///< of the tokens that may be masked
  double mask_share = 0.8;   ///< of those: the mask token
  double random_share = 0.1; ///< of those: a random token; the rest stay as they are
  int64_t mask_token = -1;
  int64_t vocab_size = 0;
  int64_t max_masked = 1 << 30;
  /// Up to so many words behind one another are masked together; n of them with a probability
  /// proportional to 1 / n.
  int64_t max_ngram = 1;
  std::function<bool(int64_t)> continues_word = {}; ///< whether a token belongs to the one before
  std::function<bool(int64_t)> is_special = {};     ///< tokens that are never masked
};

struct MaskedToken {
  int64_t position = 0;
  int64_t label = 0; ///< what stood there
};

/// Masks whole words of `tokens` in random order until `rate` of the tokens (at least one) would be
/// passed; words too long for what is left are passed over. Sorted by position.
std::vector<MaskedToken> mask_words(std::span<int64_t> tokens, const MaskOptions& options,
                                    Draws& draws);

/// Lengths of `count` parts of `total`, each at least 1, all such partitions equally likely.
std::vector<int64_t> random_partition(int64_t total, int64_t count, Draws& draws);

struct Span {
  int64_t begin = 0;
  int64_t end = 0;
};

/// Of noise in `length` tokens: round(length * density) tokens in round(tokens / mean_length)
/// spans, at least one of each, so few that text is before each span.
struct NoiseCounts {
  int64_t tokens = 0;
  int64_t spans = 0;
};
NoiseCounts noise_counts(int64_t length, double density, double mean_length);

/// Spans of noise in `length` tokens, in the numbers given by noise_counts(), with text before each
/// span.
std::vector<Span> noise_spans(int64_t length, double density, double mean_length, Draws& draws);

/// For noise_spans(): the length of the target of a raw text, with a sentinel for each span and one
/// more token.
int64_t target_length_of(int64_t raw_length, double density, double mean_length);

/// For noise_spans(): the longest raw text of which neither input nor target is longer than given,
/// when each span is one sentinel in both and the target ends with one more token, as the input
/// does.
int64_t raw_length_for(int64_t input_length, int64_t target_length, double density,
                       double mean_length);

} // namespace pentatron::data
