#include "pentatron/data/objectives/bert_dataset.h"

#include <algorithm>

#include "pentatron/base/error.h"
#include "pentatron/data/permutation.h"

namespace pentatron::data {

namespace {

constexpr int64_t kMarks = 3; // [CLS] and two [SEP]

/// Takes tokens from the longer of both, at its begin or its end, until they fit.
void shorten(std::vector<int64_t>& a, std::vector<int64_t>& b, size_t most, Draws& draws) {
  while (a.size() + b.size() > most) {
    std::vector<int64_t>& longer = a.size() > b.size() ? a : b;
    if (draws.below(2) == 0) {
      longer.erase(longer.begin());
    } else {
      longer.pop_back();
    }
  }
}

void append(std::vector<int64_t>& to, const std::vector<int64_t>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

} // namespace

BertDataset::BertDataset(std::shared_ptr<const Sentences> corpus, const Options& options)
    : corpus_(std::move(corpus)), options_(options), stream_(options.seed, "bert samples") {
  if (options_.sequence_length < kMarks + 2)
    raise<ConfigError>("sequence length {} is too short for two texts and three special tokens",
                       options_.sequence_length);
  for (int64_t d = 0; d < corpus_->num_documents(); ++d) {
    for (int64_t s = corpus_->document_begin(d); s < corpus_->document_begin(d + 1); ++s) {
      if (corpus_->length(s) > 0) {
        documents_.push_back(static_cast<int32_t>(d));
        break;
      }
    }
  }
  if (documents_.empty()) throw DataError("the corpus has no sentence with tokens");
}

BertDataset::Piece BertDataset::piece_of(int64_t document, int64_t first, int64_t target) const {
  Piece piece;
  int64_t length = 0;
  std::vector<int64_t> sentence;
  const int64_t begin = corpus_->document_begin(document);
  const int64_t end = corpus_->document_begin(document + 1);
  for (int64_t s = begin + first; s < end && length < target; ++s) {
    corpus_->read(s, sentence);
    if (sentence.empty()) continue;
    length += static_cast<int64_t>(sentence.size());
    piece.sentences.push_back(sentence);
  }
  return piece;
}

BertSample BertDataset::sample(int64_t n) const {
  PT_DCHECK(n >= 0);
  const auto count = static_cast<uint64_t>(documents_.size());
  const auto number = static_cast<uint64_t>(n);
  const Permutation order(options_.seed, "bert documents", number / count, count);
  const auto chosen = static_cast<size_t>(order(number % count));
  const int64_t document = documents_[chosen];
  Draws draws(stream_, number);
  int64_t target = options_.sequence_length - kMarks;
  if (draws.uniform() < options_.short_sequence_rate)
    target = 2 + static_cast<int64_t>(draws.below(static_cast<uint64_t>(target - 1)));
  // Where in the document the piece begins; every sentence has its turn over the epochs.
  const int64_t sentences =
      corpus_->document_begin(document + 1) - corpus_->document_begin(document);
  Piece piece = piece_of(
      document, static_cast<int64_t>(draws.below(static_cast<uint64_t>(sentences))), target);
  if (piece.sentences.empty()) piece = piece_of(document, 0, target);

  std::vector<int64_t> a;
  std::vector<int64_t> b;
  BertSample out;
  const size_t total = piece.sentences.size();
  const size_t cut = total < 2 ? 1 : 1 + draws.below(total - 1);
  for (size_t i = 0; i < cut; ++i) append(a, piece.sentences[i]);
  out.is_random = total < 2 || draws.uniform() < 0.5;
  if (!out.is_random) {
    for (size_t i = cut; i < total; ++i) append(b, piece.sentences[i]);
  } else {
    // Another document where there is one.
    const auto other = count > 1 ? (chosen + 1 + draws.below(count - 1)) % count : chosen;
    const int64_t from = documents_[static_cast<size_t>(other)];
    const int64_t choices = corpus_->document_begin(from + 1) - corpus_->document_begin(from);
    const int64_t room = std::max<int64_t>(1, target - static_cast<int64_t>(a.size()));
    Piece second =
        piece_of(from, static_cast<int64_t>(draws.below(static_cast<uint64_t>(choices))), room);
    if (second.sentences.empty()) second = piece_of(from, 0, room);
    for (const auto& sentence : second.sentences) append(b, sentence);
  }
  shorten(a, b, static_cast<size_t>(target), draws);

  const auto s = static_cast<size_t>(options_.sequence_length);
  out.tokens.push_back(options_.cls_token);
  append(out.tokens, a);
  out.tokens.push_back(options_.sep_token);
  const size_t first_length = out.tokens.size();
  append(out.tokens, b);
  out.tokens.push_back(options_.sep_token);
  const size_t length = out.tokens.size();
  MaskOptions mask = options_.mask;
  mask.is_special = [&](int64_t token) {
    return token == options_.cls_token || token == options_.sep_token ||
           token == options_.pad_token ||
           (options_.mask.is_special && options_.mask.is_special(token));
  };
  const std::vector<MaskedToken> masked = mask_words(out.tokens, mask, draws);
  out.tokens.resize(s, options_.pad_token);
  out.types.assign(s, 0);
  std::fill(out.types.begin() + static_cast<std::ptrdiff_t>(first_length),
            out.types.begin() + static_cast<std::ptrdiff_t>(length), 1);
  out.padding.assign(s, 0);
  std::fill_n(out.padding.begin(), length, uint8_t{1});
  out.labels.assign(s, -1);
  out.loss_mask.assign(s, 0);
  for (const MaskedToken& token : masked) {
    out.labels[static_cast<size_t>(token.position)] = token.label;
    out.loss_mask[static_cast<size_t>(token.position)] = 1;
  }
  return out;
}

} // namespace pentatron::data
