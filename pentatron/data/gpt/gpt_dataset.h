/// Samples of an indexed dataset in Megatron's order.
#pragma once

#include <memory>
#include <string>

#include "pentatron/data/dataset.h"
#include "pentatron/data/gpt/gpt_index.h"
#include "pentatron/data/indexed/indexed_dataset.h"

namespace pentatron::data {

/// Sequences [begin, end) of a corpus: a part of dataset.split as Megatron cuts it.
struct SequenceRange {
  int64_t begin = 0;
  int64_t end = 0;
};

/// The sequences of `part`, by the shares in `split`: every number in the text counts, missing ones
/// are 0, cuts are rounded to the nearest (even) sequence. Throws ConfigError if it has no share
/// above 0 or more than three.
SequenceRange megatron_split(const std::string& split, int64_t num_sequences, Part part);

class GptDataset final : public TokenDataset {
 public:
  GptDataset(std::shared_ptr<const IndexedDataset> corpus, std::shared_ptr<const GptIndex> index,
             int64_t vocab_size);

  int64_t sequence_length() const override { return index_->sequence_length; }
  std::optional<int64_t> size() const override { return index_->num_samples; }
  int64_t samples_per_epoch() const override { return index_->samples_per_epoch; }
  /// A last sample that is not full ends in zeros without a loss.
  void sample(int64_t n, int64_t* tokens) const override;
  void sample_with_mask(int64_t n, int64_t* tokens, uint8_t* loss_mask) const override;
  const GptIndex& index() const { return *index_; }

 private:
  int64_t read(int64_t n, int64_t* tokens) const;

  std::shared_ptr<const IndexedDataset> corpus_;
  std::shared_ptr<const GptIndex> index_;
  int64_t vocab_size_;
};

} // namespace pentatron::data
