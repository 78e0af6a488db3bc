/// Sentences of a corpus by number: of an indexed dataset whose sequences are sentences, or of any
/// source in memory.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "pentatron/data/indexed/indexed_dataset.h"

namespace pentatron::data {

/// Documents, each of sentences [document_begin(d), document_begin(d + 1)). Any number of threads.
class Sentences {
 public:
  virtual ~Sentences() = default;
  virtual int64_t num_documents() const = 0;
  virtual int64_t document_begin(int64_t document) const = 0;
  /// Replaces `tokens` by sentence i.
  virtual void read(int64_t i, std::vector<int64_t>& tokens) const = 0;
  virtual int64_t length(int64_t i) const = 0;
};

class IndexedSentences final : public Sentences {
 public:
  explicit IndexedSentences(std::shared_ptr<const IndexedDataset> corpus);
  int64_t num_documents() const override { return corpus_->num_documents(); }
  int64_t document_begin(int64_t document) const override;
  void read(int64_t i, std::vector<int64_t>& tokens) const override;
  int64_t length(int64_t i) const override { return corpus_->sequence(i).length; }

 private:
  std::shared_ptr<const IndexedDataset> corpus_;
};

} // namespace pentatron::data
