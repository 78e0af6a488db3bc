/// Texts with masked words, alone or in pairs, as BERT learns from.
/// Source: Devlin et al. 2018 (arXiv:1810.04805); the order of two parts as what there is to tell:
/// Lan et al. 2019 (arXiv:1909.11942).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "pentatron/data/config.h"
#include "pentatron/data/dataset.h"
#include "pentatron/data/objectives/masking.h"
#include "pentatron/data/objectives/sentences.h"

namespace pentatron::data {

/// One sample without padding.
struct BertSample {
  std::vector<int64_t> tokens;     ///< [CLS] a [SEP] b [SEP], or [CLS] a [SEP]
  std::vector<MaskedToken> masked; ///< what stood at the masked places
  int64_t first_length = 0;        ///< tokens up to the first [SEP], which have the type 0
  bool is_odd = false; ///< the second text is of another place, or both have changed places
};

/// Fields `input_ids`, `token_type_ids`, `labels` and, of pairs, `next_sentence_label` [b], which
/// is BertSample::is_odd; the padding is at the end.
///
/// Sample n is a pure function of (sentences, options, n). Documents are cut into pieces of whole
/// sentences that fit a sample; a longer sentence is cut into several pieces. Every piece is one
/// sample an epoch. For a pair it is cut in two between sentences, a single sentence in its middle:
/// then, in half of the samples, the second part is replaced by the beginning of a piece of another
/// document (kNextSentence; of another piece if there is only one document, and never if there is
/// only one piece) or changes places with the first (kSentenceOrder).
class BertDataset final : public Dataset {
 public:
  struct Options {
    int64_t sequence_length = 512;
    uint64_t seed = 0;
    std::string name = "train";       ///< part of the key of the order
    double short_sequence_rate = 0.1; ///< of samples with a random shorter length
    BinaryHead head = BinaryHead::kNextSentence;
    int64_t cls_token = -1;
    int64_t sep_token = -1;
    int64_t pad_token = -1;
    MaskOptions mask = {};
  };
  /// What fields() are with this head; `pad` fills input_ids.
  static std::vector<BatchField> fields_with(BinaryHead head, double pad = 0);

  /// Of the sentences [range.begin, range.end). Throws DataError if none has a token, ConfigError
  /// if no text fits or training data of kNextSentence has only one piece.
  BertDataset(std::shared_ptr<const Sentences> corpus, StreamRange range, const Options& options);

  const std::vector<BatchStream>& streams() const override { return streams_; }
  const std::vector<BatchField>& fields() const override { return fields_; }
  int64_t samples_per_epoch() const override { return std::ssize(pieces_); }
  void sample(int64_t n, const SampleView& view) const override;
  BertSample sample(int64_t n) const;

 private:
  using Tokens = std::vector<int64_t>;
  struct Piece {
    int64_t sentence = 0; ///< the first one
    int64_t offset = 0;   ///< in it, if it is longer than a piece
  };
  void find_pieces(StreamRange range);
  int64_t end_of(size_t piece) const;
  std::vector<Tokens> read(size_t piece, int64_t target) const;
  size_t other_piece(size_t piece, Draws& draws) const;
  void make_pair(size_t piece, int64_t target, Draws& draws, Tokens& a, Tokens& b,
                 BertSample& out) const;

  std::shared_ptr<const Sentences> corpus_;
  Options options_;
  int64_t room_; ///< for text in a sample
  Stream stream_;
  std::vector<BatchStream> streams_;
  std::vector<BatchField> fields_;
  std::vector<Piece> pieces_;
  std::vector<int64_t> documents_; ///< the first piece of each that has one, then their number
  int64_t end_ = 0;                ///< of the sentences
};

} // namespace pentatron::data
