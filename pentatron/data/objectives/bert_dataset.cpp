#include "pentatron/data/objectives/bert_dataset.h"

#include <algorithm>

#include "pentatron/base/error.h"
#include "pentatron/data/batch.h"
#include "pentatron/data/permutation.h"

namespace pentatron::data {

namespace {

enum BertField : size_t { kBertInputIds, kBertTypes, kBertLabels, kBertNext };

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

BertDataset::BertDataset(std::shared_ptr<const Sentences> corpus, StreamRange range,
                         const Options& options)
    : corpus_(std::move(corpus)), options_(options),
      room_(options.sequence_length - (options.head == BinaryHead::kNone ? 2 : 3)),
      stream_(options.seed, "bert samples " + options.name), streams_{{"tokens",
                                                                       options.sequence_length}},
      end_(range.end) {
  if (room_ < 2)
    raise<ConfigError>("train.seq_length={} has no room for two tokens of text in addition to {} "
                       "special tokens\n  try: train.seq_length={}",
                       options_.sequence_length, options_.sequence_length - room_,
                       options_.sequence_length - room_ + 2);
  fields_ = fields_with(options_.head, static_cast<double>(options_.pad_token));
  find_pieces(range);
  if (pieces_.empty()) raise<DataError>("the {} data has no sentence with tokens", options_.name);
  if (pieces_.size() == 1 && options_.head == BinaryHead::kNextSentence &&
      options_.name == name_of(Part::kTrain))
    raise<ConfigError>("dataset.bert_binary_head=next_sentence takes second texts from other "
                       "places of the training data, which has only one sample of "
                       "train.seq_length={}\n  try: dataset.bert_binary_head=sentence_order",
                       options_.sequence_length);
}

std::vector<BatchField> BertDataset::fields_with(BinaryHead head, double pad) {
  std::vector<BatchField> fields{
      {.name = "input_ids", .fill = pad},
      {.name = "token_type_ids", .limit = head == BinaryHead::kNone ? 1 : 2},
      label_field()};
  if (head != BinaryHead::kNone) fields.push_back(label_field("", "next_sentence_label"));
  return fields;
}

void BertDataset::find_pieces(StreamRange range) {
  for (int64_t d = 0; d < corpus_->num_documents(); ++d) {
    const int64_t begin = std::max(range.begin, corpus_->document_begin(d));
    const int64_t end = std::min(range.end, corpus_->document_begin(d + 1));
    const auto before = pieces_.size();
    int64_t left = 0; // in the piece
    for (int64_t s = begin; s < end; ++s) {
      const int64_t length = corpus_->length(s);
      if (length == 0) continue;
      if (length > room_) {
        for (int64_t offset = 0; offset < length; offset += room_) pieces_.push_back({s, offset});
        left = 0;
        continue;
      }
      if (length > left) {
        pieces_.push_back({s, 0});
        left = room_;
      }
      left -= length;
    }
    if (pieces_.size() > before) documents_.push_back(static_cast<int64_t>(before));
  }
  documents_.push_back(std::ssize(pieces_));
}

/// The sentence behind the last one of a piece.
int64_t BertDataset::end_of(size_t piece) const {
  const int64_t first = pieces_[piece].sentence;
  if (corpus_->length(first) > room_) return first + 1;
  return piece + 1 < pieces_.size() ? pieces_[piece + 1].sentence : end_;
}

/// The sentences of a piece until `target` tokens are reached.
std::vector<BertDataset::Tokens> BertDataset::read(size_t piece, int64_t target) const {
  const Piece& here = pieces_[piece];
  std::vector<Tokens> sentences;
  int64_t length = 0;
  const int64_t end = end_of(piece);
  for (int64_t s = here.sentence; s < end && length < target; ++s) {
    const int64_t offset = s == here.sentence ? here.offset : 0;
    const int64_t count = std::min(corpus_->length(s) - offset, room_);
    if (count == 0) continue;
    Tokens& tokens = sentences.emplace_back(static_cast<size_t>(count));
    corpus_->read(s, offset, count, tokens.data());
    length += count;
  }
  return sentences;
}

/// Of another document if there is one, else another piece.
size_t BertDataset::other_piece(size_t piece, Draws& draws) const {
  const auto after = std::ranges::upper_bound(documents_, static_cast<int64_t>(piece));
  auto begin = static_cast<size_t>(*(after - 1)), end = static_cast<size_t>(*after);
  if (end - begin == pieces_.size()) {
    begin = piece;
    end = piece + 1;
  }
  const size_t other = draws.below(pieces_.size() - (end - begin));
  return other < begin ? other : other + (end - begin);
}

void BertDataset::make_pair(size_t piece, int64_t target, Draws& draws, Tokens& a, Tokens& b,
                            BertSample& out) const {
  const std::vector<Tokens> sentences = read(piece, target);
  const size_t total = sentences.size();
  const bool replaced = options_.head == BinaryHead::kNextSentence;
  if (total < 2) { // a single sentence
    const Tokens& all = sentences.front();
    const auto middle = all.begin() + static_cast<std::ptrdiff_t>((all.size() + 1) / 2);
    a.assign(all.begin(), middle);
    b.assign(middle, all.end());
  } else {
    const size_t cut = 1 + draws.below(total - 1);
    for (size_t i = 0; i < total; ++i) append(i < cut ? a : b, sentences[i]);
  }
  const bool has_other = !replaced || pieces_.size() > 1;
  out.is_odd = draws.uniform() < 0.5 && has_other;
  if (out.is_odd && replaced) {
    b.clear();
    const int64_t left = std::max<int64_t>(1, target - std::ssize(a));
    for (const Tokens& sentence : read(other_piece(piece, draws), left)) append(b, sentence);
  }
  shorten(a, b, static_cast<size_t>(target), draws);
  if (out.is_odd && !replaced) a.swap(b);
}

BertSample BertDataset::sample(int64_t n) const {
  PT_DCHECK(n >= 0);
  const auto count = static_cast<uint64_t>(pieces_.size());
  const auto number = static_cast<uint64_t>(n);
  const Permutation order(options_.seed, "bert pieces " + options_.name, number / count, count);
  const auto piece = static_cast<size_t>(order(number % count));
  Draws draws(stream_, number);
  int64_t target = room_;
  if (draws.uniform() < options_.short_sequence_rate)
    target = 2 + static_cast<int64_t>(draws.below(static_cast<uint64_t>(target - 1)));
  BertSample out;
  Tokens a, b;
  if (options_.head == BinaryHead::kNone) {
    for (const Tokens& sentence : read(piece, target)) append(a, sentence);
    shorten(a, b, static_cast<size_t>(target), draws);
  } else {
    make_pair(piece, target, draws, a, b, out);
  }
  out.tokens.push_back(options_.cls_token);
  append(out.tokens, a);
  out.tokens.push_back(options_.sep_token);
  out.first_length = std::ssize(out.tokens);
  if (options_.head != BinaryHead::kNone) {
    append(out.tokens, b);
    out.tokens.push_back(options_.sep_token);
  }
  MaskOptions mask = options_.mask;
  mask.is_special = [&](int64_t token) {
    return token == options_.cls_token || token == options_.sep_token ||
           token == options_.pad_token ||
           (options_.mask.is_special && options_.mask.is_special(token));
  };
  out.masked = mask_words(out.tokens, mask, draws);
  return out;
}

void BertDataset::sample(int64_t n, const SampleView& view) const {
  const BertSample drawn = sample(n);
  const int64_t length = std::ssize(drawn.tokens);
  std::ranges::copy(drawn.tokens, view.ints(kBertInputIds).begin());
  const std::span<int64_t> types = view.ints(kBertTypes), labels = view.ints(kBertLabels);
  std::fill(types.begin() + drawn.first_length, types.begin() + length, int64_t{1});
  for (const MaskedToken& token : drawn.masked)
    labels[static_cast<size_t>(token.position)] = token.label;
  if (options_.head != BinaryHead::kNone) view.ints(kBertNext)[0] = drawn.is_odd ? 1 : 0;
  view.set_real(0, {0, length});
}

} // namespace pentatron::data
