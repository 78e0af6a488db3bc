#include "pentatron/data/objectives/t5_dataset.h"

#include <cmath>

#include "pentatron/base/error.h"
#include "pentatron/data/objectives/masking.h"

namespace pentatron::data {

int64_t T5Dataset::raw_length(const Options& options) {
  return raw_length_for(options.input_length, options.target_length, options.noise_density,
                        options.mean_noise_span_length);
}

T5Dataset::T5Dataset(std::shared_ptr<const TokenDataset> plain, const Options& options)
    : plain_(std::move(plain)), options_(options), raw_length_(raw_length(options)),
      stream_(options.seed, "t5 spans") {
  if (!(options.noise_density > 0 && options.noise_density < 1) ||
      !(options.mean_noise_span_length >= 1)) {
    raise<ConfigError>("noise density {} with spans of {} tokens is not valid: the density is "
                       "between 0 and 1, and spans have at least one token",
                       options.noise_density, options.mean_noise_span_length);
  }
  if (plain_->sequence_length() + 1 < raw_length_) {
    raise<ConfigError>("samples of {} tokens are too short for inputs of {} and targets of {}\n  "
                       "try: a sequence length of {}",
                       plain_->sequence_length() + 1, options.input_length, options.target_length,
                       raw_length_ - 1);
  }
  const auto spans = std::llround(static_cast<double>(raw_length_) * options.noise_density /
                                  options.mean_noise_span_length);
  if (static_cast<int64_t>(options.sentinels.size()) < std::max<long long>(1, spans)) {
    raise<ConfigError>("{} sentinels are fewer than the {} spans of {} tokens",
                       options.sentinels.size(), spans, raw_length_);
  }
}

T5Sample T5Dataset::sample(int64_t n) const {
  std::vector<int64_t> raw(static_cast<size_t>(plain_->sequence_length() + 1));
  plain_->sample(n, raw.data());
  raw.resize(static_cast<size_t>(raw_length_));
  Draws draws(stream_, static_cast<uint64_t>(n));
  const std::vector<Span> spans =
      noise_spans(raw_length_, options_.noise_density, options_.mean_noise_span_length, draws);
  PT_DCHECK(spans.size() <= options_.sentinels.size());
  T5Sample out;
  std::vector<int64_t> target;
  int64_t at = 0;
  const auto copy = [&](std::vector<int64_t>& to, int64_t begin, int64_t end) {
    to.insert(to.end(), raw.begin() + begin, raw.begin() + end);
  };
  for (size_t i = 0; i < spans.size(); ++i) {
    copy(out.encoder_tokens, at, spans[i].begin);
    out.encoder_tokens.push_back(options_.sentinels[i]);
    target.push_back(options_.sentinels[i]);
    copy(target, spans[i].begin, spans[i].end);
    at = spans[i].end;
  }
  copy(out.encoder_tokens, at, raw_length_);
  out.encoder_tokens.push_back(options_.eos_token);
  target.push_back(options_.eos_token);
  out.encoder_padding.assign(out.encoder_tokens.size(), 1);
  out.encoder_tokens.resize(static_cast<size_t>(options_.input_length), options_.pad_token);
  out.encoder_padding.resize(static_cast<size_t>(options_.input_length), 0);
  out.loss_mask.assign(target.size(), 1);
  out.decoder_tokens = target;
  out.decoder_tokens.insert(out.decoder_tokens.begin(), options_.start_token);
  out.decoder_tokens.pop_back();
  const auto length = static_cast<size_t>(options_.target_length);
  out.decoder_tokens.resize(length, options_.pad_token);
  target.resize(length, options_.pad_token);
  out.loss_mask.resize(length, 0);
  out.labels = std::move(target);
  return out;
}

} // namespace pentatron::data
