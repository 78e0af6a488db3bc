/// Documents of sentences by number: of an indexed dataset whose sequences are sentences, or of a
/// corpus of text.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "pentatron/data/corpus.h"
#include "pentatron/data/indexed/indexed_dataset.h"
#include "pentatron/data/token_stream.h"

namespace pentatron::data {

/// Document d has the sentences [document_begin(d), document_begin(d + 1)). Any number of threads.
class Sentences {
 public:
  virtual ~Sentences() = default;
  virtual int64_t num_documents() const = 0;
  virtual int64_t document_begin(int64_t document) const = 0;
  virtual int64_t length(int64_t i) const = 0;
  /// Writes tokens [offset, offset + count) of sentence i to `out`.
  virtual void read(int64_t i, int64_t offset, int64_t count, int64_t* out) const = 0;
  int64_t num_sentences() const { return document_begin(num_documents()); }
};

class IndexedSentences final : public Sentences {
 public:
  /// Tokens outside [0, vocab_size) are a DataError of read().
  IndexedSentences(std::shared_ptr<const IndexedDataset> corpus, int64_t vocab_size)
      : corpus_(std::move(corpus)), vocab_size_(vocab_size) {}
  int64_t num_documents() const override { return corpus_->num_documents(); }
  int64_t document_begin(int64_t document) const override;
  int64_t length(int64_t i) const override { return corpus_->sequence(i).length; }
  void read(int64_t i, int64_t offset, int64_t count, int64_t* out) const override;

 private:
  std::shared_ptr<const IndexedDataset> corpus_;
  int64_t vocab_size_;
};

/// Of a corpus that was read with sentences. The end of a document belongs to none.
class CorpusSentences final : public Sentences {
 public:
  explicit CorpusSentences(std::shared_ptr<const Corpus> corpus);
  int64_t num_documents() const override { return std::ssize(documents_) - 1; }
  int64_t document_begin(int64_t document) const override {
    return documents_[static_cast<size_t>(document)];
  }
  int64_t length(int64_t i) const override;
  void read(int64_t i, int64_t offset, int64_t count, int64_t* out) const override;

 private:
  std::shared_ptr<const Corpus> corpus_;
  std::vector<int64_t> documents_; // the first sentence of each, one more than documents
};

/// The sentences that begin in a range of the stream of all tokens, as [begin, end).
StreamRange sentences_in(const Corpus& corpus, StreamRange tokens);
StreamRange sentences_in(const IndexedDataset& corpus, StreamRange tokens);

} // namespace pentatron::data
