/// Texts with spans taken out, as T5 learns from: the input has a sentinel where a span was, the
/// target is each sentinel with its span.
/// Source: Raffel et al. 2019 (arXiv:1910.10683) sec. 3.1.4.
#pragma once

#include <memory>
#include <vector>

#include "pentatron/base/philox.h"
#include "pentatron/data/dataset.h"

namespace pentatron::data {

struct T5Sample {
  std::vector<int64_t> encoder_tokens;  ///< [input_length]
  std::vector<uint8_t> encoder_padding; ///< 1 where there is text
  std::vector<int64_t> decoder_tokens;  ///< [target_length], the start token and the target
  std::vector<int64_t> labels;          ///< [target_length], the target
  std::vector<uint8_t> loss_mask;       ///< [target_length]
};

/// Sample n is a pure function of (plain sample n, options, n).
class T5Dataset {
 public:
  struct Options {
    int64_t input_length = 512;
    int64_t target_length = 128;
    double noise_density = 0.15;
    double mean_noise_span_length = 3;
    std::vector<int64_t> sentinels; ///< in the order in which they are used
    int64_t eos_token = -1;
    int64_t pad_token = -1;
    int64_t start_token = -1; ///< the first input of the decoder
    uint64_t seed = 0;
  };
  /// The raw text that a sample needs: what `plain` is to have as sequence_length() + 1.
  static int64_t raw_length(const Options& options);

  /// Throws ConfigError if there are fewer sentinels than spans, or `plain` is too short.
  T5Dataset(std::shared_ptr<const TokenDataset> plain, const Options& options);

  std::optional<int64_t> size() const { return plain_->size(); }
  T5Sample sample(int64_t n) const;

 private:
  std::shared_ptr<const TokenDataset> plain_;
  Options options_;
  int64_t raw_length_;
  Stream stream_;
};

} // namespace pentatron::data
