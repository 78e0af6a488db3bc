/// Texts with spans taken out, as T5 learns from: the input has a sentinel where a span was, the
/// target is each sentinel with its span.
/// Source: Raffel et al. 2019 (arXiv:1910.10683) sec. 3.1.4.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "pentatron/base/philox.h"
#include "pentatron/data/dataset.h"

namespace pentatron::data {

/// One sample without padding.
struct T5Sample {
  std::vector<int64_t> input;  ///< of the encoder
  std::vector<int64_t> target; ///< what the decoder has to say
};

/// Fields `input_ids` of the stream "encoder", and of the stream "decoder" `labels` and
/// `decoder_input_ids`, the labels one place further on behind the start token; the padding is at
/// the end. Sample n is a pure function of (plain sample n, options, n).
class T5Dataset final : public Dataset {
 public:
  struct Options {
    int64_t input_length = 512;
    int64_t target_length = 128;
    double noise_density = 0.15;
    double mean_noise_span_length = 3;
    std::vector<int64_t> sentinels;      ///< in the order in which they are used
    bool sentinels_of_tokenizer = false; ///< not added by dataset.vocab_extra_ids
    int64_t eos_token = -1;
    int64_t pad_token = -1;
    int64_t start_token = -1; ///< the first input of the decoder
    uint64_t seed = 0;
  };
  /// The raw text that a sample needs: what `plain` is to have as sequence_length() + 1.
  static int64_t raw_length(const Options& options);

  /// Throws ConfigError if there are fewer sentinels than spans, or `plain` is too short.
  T5Dataset(std::shared_ptr<const TokenDataset> plain, const Options& options);

  /// Writes a sample. `start`: the first input of the decoder. Neither sequence is empty or longer
  /// than that of its stream.
  template <class Token>
  static void write(std::span<const Token> input, std::span<const Token> target, int64_t start,
                    const SampleView& view);
  /// What fields() are; `pad` fills inputs.
  static std::vector<BatchField> fields_with(double pad = 0);
  /// The length of the inputs of all samples, without padding.
  static int64_t filled_input_length(const Options& options);
  /// The length of the target that belongs to inputs of `options.input_length`.
  static int64_t full_target_length(const Options& options);

  const std::vector<BatchStream>& streams() const override { return streams_; }
  const std::vector<BatchField>& fields() const override { return fields_; }
  std::optional<int64_t> size() const override { return plain_->size(); }
  int64_t samples_per_epoch() const override { return plain_->samples_per_epoch(); }
  void sample(int64_t n, const SampleView& view) const override;
  T5Sample sample(int64_t n) const;

 private:
  std::shared_ptr<const TokenDataset> plain_;
  Options options_;
  int64_t raw_length_;
  Stream stream_;
  std::vector<BatchStream> streams_;
  std::vector<BatchField> fields_;
};

} // namespace pentatron::data
