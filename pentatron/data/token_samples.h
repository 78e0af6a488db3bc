/// Tokens as the samples of a model that predicts the next one: the only place where tokens become
/// fields.
#pragma once

#include <memory>
#include <vector>

#include "pentatron/data/dataset.h"

namespace pentatron::data {

/// Fields `input_ids` and `labels` (the tokens one place further on; -100 where none counts) of the
/// stream "tokens".
class TokenSamples final : public Dataset {
 public:
  struct Options {
    int64_t eod = -1; ///< the token that ends a document; -1 for none
    bool eod_mask_loss = false;
    bool reset_position_ids = false;
    bool reset_attention_mask = false;
  };
  TokenSamples(std::shared_ptr<const TokenDataset> tokens, const Options& options);

  const std::vector<BatchStream>& streams() const override { return streams_; }
  const std::vector<BatchField>& fields() const override { return fields_; }
  std::optional<int64_t> size() const override { return tokens_->size(); }
  int64_t samples_per_epoch() const override { return tokens_->samples_per_epoch(); }
  void sample(int64_t n, const SampleView& view) const override;
  const TokenDataset& tokens() const { return *tokens_; }

 private:
  void mark_documents(const SampleView& view) const;

  std::shared_ptr<const TokenDataset> tokens_;
  Options options_;
  bool marks_;
  std::vector<BatchStream> streams_;
  std::vector<BatchField> fields_;
};

} // namespace pentatron::data
