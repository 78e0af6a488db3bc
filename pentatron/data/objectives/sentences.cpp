#include "pentatron/data/objectives/sentences.h"

namespace pentatron::data {

IndexedSentences::IndexedSentences(std::shared_ptr<const IndexedDataset> corpus)
    : corpus_(std::move(corpus)) {}

int64_t IndexedSentences::document_begin(int64_t document) const {
  int64_t begin = 0;
  corpus_->read_document_indices(document, std::span(&begin, 1));
  return begin;
}

void IndexedSentences::read(int64_t i, std::vector<int64_t>& tokens) const {
  const IndexedDataset::Sequence sequence = corpus_->sequence(i);
  tokens.resize(static_cast<size_t>(sequence.length));
  corpus_->read_tokens(sequence.first_token, sequence.length, tokens.data());
}

} // namespace pentatron::data
