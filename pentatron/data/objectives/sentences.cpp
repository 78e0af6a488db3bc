#include "pentatron/data/objectives/sentences.h"

namespace pentatron::data {

int64_t IndexedSentences::document_begin(int64_t document) const {
  int64_t begin = 0;
  corpus_->read_document_indices(document, std::span(&begin, 1));
  return begin;
}

void IndexedSentences::read(int64_t i, int64_t offset, int64_t count, int64_t* out) const {
  const int64_t begin = corpus_->sequence(i).first_token + offset;
  corpus_->read_tokens(begin, count, out);
  check_tokens(out, count, vocab_size_, *corpus_);
}

CorpusSentences::CorpusSentences(std::shared_ptr<const Corpus> corpus)
    : corpus_(std::move(corpus)) {
  for (int64_t d = 0; d <= corpus_->num_documents(); ++d)
    documents_.push_back(corpus_->first_sentence(corpus_->document_begin(d)));
}

int64_t CorpusSentences::length(int64_t i) const {
  return corpus_->sentence_end(i) - corpus_->sentence_begin(i);
}

void CorpusSentences::read(int64_t i, int64_t offset, int64_t count, int64_t* out) const {
  corpus_->copy(corpus_->sentence_begin(i) + offset, count, out);
}

StreamRange sentences_in(const Corpus& corpus, StreamRange tokens) {
  return {corpus.first_sentence(tokens.begin), corpus.first_sentence(tokens.end)};
}

StreamRange sentences_in(const IndexedDataset& corpus, StreamRange tokens) {
  const auto first = [&](int64_t token) {
    int64_t low = 0, high = corpus.num_sequences();
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      if (corpus.sequence(middle).first_token < token)
        low = middle + 1;
      else
        high = middle;
    }
    return low;
  };
  return {first(tokens.begin),
          tokens.end == corpus.num_tokens() ? corpus.num_sequences() : first(tokens.end)};
}

} // namespace pentatron::data
