/// Documents concatenated to one stream of tokens, from any source.
#pragma once

#include <cstdint>
#include <memory>

#include "pentatron/data/indexed/indexed_dataset.h"

namespace pentatron::data {

/// Places [begin, end), of a stream: a part of dataset.split.
struct StreamRange {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
  bool operator==(const StreamRange&) const = default;
};

/// Any number of threads may read at once.
class TokenStream {
 public:
  virtual ~TokenStream() = default;

  virtual int64_t size_tokens() const = 0;
  virtual int64_t num_documents() const = 0;
  /// Where document i begins in the stream; i = num_documents() gives size_tokens().
  virtual int64_t document_begin(int64_t i) const = 0;
  /// Writes tokens [begin, begin + count) of the stream to `out`.
  virtual void copy(int64_t begin, int64_t count, int64_t* out) const = 0;
};

/// The documents of an indexed dataset in the order of its files.
class IndexedStream final : public TokenStream {
 public:
  /// Tokens outside [0, vocab_size) are a DataError of copy().
  IndexedStream(std::shared_ptr<const IndexedDataset> corpus, int64_t vocab_size)
      : corpus_(std::move(corpus)), vocab_size_(vocab_size) {}

  int64_t size_tokens() const override { return corpus_->num_tokens(); }
  int64_t num_documents() const override { return corpus_->num_documents(); }
  int64_t document_begin(int64_t i) const override { return corpus_->document_begin(i); }
  void copy(int64_t begin, int64_t count, int64_t* out) const override;

 private:
  std::shared_ptr<const IndexedDataset> corpus_;
  int64_t vocab_size_;
};

/// Throws DataError, with the vocabulary size that the corpus needs, if a token that was read from
/// it is not in [0, vocab_size).
void check_tokens(const int64_t* tokens, int64_t count, int64_t vocab_size,
                  const IndexedDataset& corpus);

} // namespace pentatron::data
