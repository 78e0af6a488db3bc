#include "pentatron/data/objectives/t5_dataset.h"

#include <algorithm>
#include <cmath>

#include "pentatron/base/error.h"
#include "pentatron/base/format.h"
#include "pentatron/data/batch.h"
#include "pentatron/data/objectives/masking.h"

namespace pentatron::data {

namespace {

enum T5Field : size_t { kT5Inputs, kT5Labels, kT5DecoderInputs };

int64_t num_spans(const T5Dataset::Options& options) {
  return noise_counts(T5Dataset::raw_length(options), options.noise_density,
                      options.mean_noise_span_length)
      .spans;
}

/// Spans so long that there are enough sentinels for them.
double fitting_span_length(T5Dataset::Options options) {
  options.mean_noise_span_length = std::ceil(options.mean_noise_span_length);
  while (num_spans(options) > std::ssize(options.sentinels)) ++options.mean_noise_span_length;
  return options.mean_noise_span_length;
}

void require_sentinels(const T5Dataset::Options& options) {
  const int64_t spans = num_spans(options), markers = std::ssize(options.sentinels);
  if (markers >= spans) return;
  const std::string needed =
      fmt::format("but a text of {} has {}", counted(T5Dataset::raw_length(options), "token"),
                  counted(spans, "masked span"));
  if (options.sentinels_of_tokenizer && markers > 0)
    raise<ConfigError>("the tokenizer has {}, <extra_id_0> to <extra_id_{}>, {}\n  try: "
                       "dataset.mean_noise_span_length={}",
                       counted(markers, "span marker"), markers - 1, needed,
                       fitting_span_length(options));
  raise<ConfigError>("dataset.vocab_extra_ids={} gives {}, {}\n  try: dataset.vocab_extra_ids={}",
                     markers, counted(markers, "span marker"), needed, spans);
}

} // namespace

std::vector<BatchField> T5Dataset::fields_with(double pad) {
  return {{.name = "input_ids", .stream = "encoder", .fill = pad},
          label_field("decoder"),
          {.name = "decoder_input_ids", .stream = "decoder", .fill = pad}};
}

int64_t T5Dataset::full_target_length(const Options& options) {
  const int64_t raw = raw_length_for(options.input_length, options.input_length + 1,
                                     options.noise_density, options.mean_noise_span_length);
  return target_length_of(raw, options.noise_density, options.mean_noise_span_length);
}

int64_t T5Dataset::raw_length(const Options& options) {
  return raw_length_for(options.input_length, options.target_length, options.noise_density,
                        options.mean_noise_span_length);
}

int64_t T5Dataset::filled_input_length(const Options& options) {
  const int64_t raw = raw_length(options);
  const NoiseCounts noise =
      noise_counts(raw, options.noise_density, options.mean_noise_span_length);
  return raw - noise.tokens + noise.spans + 1;
}

T5Dataset::T5Dataset(std::shared_ptr<const TokenDataset> plain, const Options& options)
    : plain_(std::move(plain)), options_(options), raw_length_(raw_length(options)),
      stream_(options.seed, "t5 spans"), streams_{{"encoder", options.input_length},
                                                  {"decoder", options.target_length}} {
  fields_ = fields_with(static_cast<double>(options.pad_token));
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
  require_sentinels(options);
}

T5Sample T5Dataset::sample(int64_t n) const {
  std::vector<int64_t> raw(static_cast<size_t>(plain_->sequence_length() + 1));
  plain_->sample(n, raw.data());
  Draws draws(stream_, static_cast<uint64_t>(n));
  const std::vector<Span> spans =
      noise_spans(raw_length_, options_.noise_density, options_.mean_noise_span_length, draws);
  PT_DCHECK(spans.size() <= options_.sentinels.size());
  T5Sample out;
  int64_t at = 0;
  const auto copy = [&](std::vector<int64_t>& to, int64_t begin, int64_t end) {
    to.insert(to.end(), raw.begin() + begin, raw.begin() + end);
  };
  for (size_t i = 0; i < spans.size(); ++i) {
    copy(out.input, at, spans[i].begin);
    out.input.push_back(options_.sentinels[i]);
    out.target.push_back(options_.sentinels[i]);
    copy(out.target, spans[i].begin, spans[i].end);
    at = spans[i].end;
  }
  copy(out.input, at, raw_length_);
  out.input.push_back(options_.eos_token);
  out.target.push_back(options_.eos_token);
  return out;
}

template <class Token>
void T5Dataset::write(std::span<const Token> input, std::span<const Token> target, int64_t start,
                      const SampleView& view) {
  std::ranges::copy(input, view.ints(kT5Inputs).begin());
  view.set_real(0, {0, std::ssize(input)});
  std::ranges::copy(target, view.ints(kT5Labels).begin());
  view.set_real(1, {0, std::ssize(target)});
  const std::span<int64_t> inputs = view.ints(kT5DecoderInputs);
  inputs[0] = start;
  std::copy(target.begin(), target.end() - 1, inputs.begin() + 1);
}
template void T5Dataset::write(std::span<const int64_t>, std::span<const int64_t>, int64_t,
                               const SampleView&);
template void T5Dataset::write(std::span<const int32_t>, std::span<const int32_t>, int64_t,
                               const SampleView&);

void T5Dataset::sample(int64_t n, const SampleView& view) const {
  const T5Sample drawn = sample(n);
  write<int64_t>(drawn.input, drawn.target, options_.start_token, view);
}

} // namespace pentatron::data
