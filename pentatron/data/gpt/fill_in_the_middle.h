/// Fill-in-the-middle: documents of a sample are cut in three, and the middle is learned last, with
/// both sides known.
/// Source: Bavarian et al. 2022, "Efficient Training of Language Models to Fill in the Middle"
/// (arXiv:2207.14255): cuts between characters, PSM and SPM (variant 2).
#pragma once

#include <memory>

#include "pentatron/base/philox.h"
#include "pentatron/data/dataset.h"
#include "pentatron/data/tokenizer.h"

namespace pentatron::data {

/// Another dataset with some of its documents rearranged. A sample keeps its length: what the three
/// marks add is cut from the end of the suffix, and a document too short for that stays as it is.
/// What happens to a document depends on (seed, sample number, its place in the sample) alone.
class FillInTheMiddleDataset final : public TokenDataset {
 public:
  struct Options {
    double rate = 0.5;     ///< of documents that are rearranged
    double spm_rate = 0.5; ///< of those, the ones with the suffix first
    int64_t prefix_token = -1;
    int64_t middle_token = -1;
    int64_t suffix_token = -1;
    int64_t pad_token = -1; ///< fills where text is encoded in fewer tokens than before
    uint64_t seed = 0;
  };
  FillInTheMiddleDataset(std::shared_ptr<const TokenDataset> plain,
                         std::shared_ptr<const Tokenizer> tokenizer, const Options& options);

  int64_t sequence_length() const override { return plain_->sequence_length(); }
  std::optional<int64_t> size() const override { return plain_->size(); }
  int64_t samples_per_epoch() const override { return plain_->samples_per_epoch(); }
  void sample(int64_t n, int64_t* tokens) const override;
  void sample_with_mask(int64_t n, int64_t* tokens, uint8_t* loss_mask) const override;

 private:
  void rearrange(uint64_t n, uint64_t place, std::span<int64_t> document) const;
  void rearrange_sample(int64_t n, int64_t* tokens) const;

  std::shared_ptr<const TokenDataset> plain_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  Options options_;
  Stream stream_;
};

} // namespace pentatron::data
