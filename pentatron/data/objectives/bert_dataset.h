/// Pairs of texts with masked words, as BERT learns from.
/// Source: Devlin et al. 2018 (arXiv:1810.04805).
#pragma once

#include <memory>

#include "pentatron/data/objectives/masking.h"
#include "pentatron/data/objectives/sentences.h"

namespace pentatron::data {

/// One sample, all arrays [sequence_length].
struct BertSample {
  std::vector<int64_t> tokens;    ///< [CLS] a [SEP] b [SEP], then padding
  std::vector<int64_t> types;     ///< 0 for the first text, 1 for the second
  std::vector<int64_t> labels;    ///< what stood at a masked place, -1 elsewhere
  std::vector<uint8_t> loss_mask; ///< 1 at masked places
  std::vector<uint8_t> padding;   ///< 1 where there is text, 0 behind it
  bool is_random = false;         ///< the second text is of another document
};

/// Sample n is a pure function of (corpus, options, n). A piece of a document, of whole sentences
/// up to sequence_length - 3 tokens, is cut in two between sentences; in half of the samples, and
/// where the piece is one sentence, the second part is of another document instead.
class BertDataset {
 public:
  struct Options {
    int64_t sequence_length = 512;
    uint64_t seed = 0;
    double short_sequence_rate = 0.1; ///< of samples with a random shorter length
    int64_t cls_token = -1;
    int64_t sep_token = -1;
    int64_t pad_token = -1;
    MaskOptions mask = {};
  };
  /// Throws DataError if no document has a token.
  BertDataset(std::shared_ptr<const Sentences> corpus, const Options& options);

  /// Documents with text, each the beginning of one sample an epoch.
  int64_t samples_per_epoch() const { return static_cast<int64_t>(documents_.size()); }
  BertSample sample(int64_t n) const;

 private:
  struct Piece {
    std::vector<std::vector<int64_t>> sentences;
  };
  Piece piece_of(int64_t document, int64_t first, int64_t target) const;

  std::shared_ptr<const Sentences> corpus_;
  Options options_;
  Stream stream_;
  std::vector<int32_t> documents_; // that have a token
};

} // namespace pentatron::data
