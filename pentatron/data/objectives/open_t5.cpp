#include "pentatron/data/objectives/open_t5.h"

#include "pentatron/base/error.h"
#include "pentatron/base/format.h"
#include "pentatron/base/log.h"
#include "pentatron/data/gpt/data_paths.h"
#include "pentatron/data/objectives/special_tokens.h"
#include "pentatron/data/objectives/t5_dataset.h"
#include "pentatron/data/open_tokens.h"

namespace pentatron::data {

namespace {

/// What the model's decoder begins with, if the model says so.
T5Dataset::Options options_of(const DatasetConfig& config, int64_t input_length) {
  return {.input_length = input_length,
          .noise_density = config.mask_prob,
          .mean_noise_span_length = config.mean_noise_span_length,
          .seed = config.seed};
}

/// A target is never cut: with short ones, less text is in a sample.
void tell_short_inputs(const T5Dataset::Options& options) {
  T5Dataset::Options full = options;
  full.target_length = T5Dataset::full_target_length(options);
  const int64_t filled = T5Dataset::filled_input_length(options);
  if (filled >= T5Dataset::filled_input_length(full)) return;
  log::shared_warning(
      "dataset.decoder_seq_length={} leaves room for {} in each input, the other {} "
      "of train.seq_length={} are padding\n  try: dataset.decoder_seq_length={}, or "
      "train.seq_length={}",
      options.target_length, counted(filled, "token"), options.input_length - filled,
      options.input_length, full.target_length, filled);
}

} // namespace

int64_t t5_target_length(const DatasetConfig& config, int64_t input_length) {
  return config.decoder_seq_length > 0
             ? config.decoder_seq_length
             : T5Dataset::full_target_length(options_of(config, input_length));
}

Datasets open_t5(const DatasetConfig& config, const DatasetContext& context) {
  const Tokenizer& tokenizer = *context.tokenizer;
  SpecialTokens special(tokenizer);
  T5Dataset::Options options = options_of(config, context.sequence_length);
  const T5Tokens special_tokens(config, tokenizer, special);
  options.pad_token = special_tokens.pad;
  options.start_token = context.start_token().value_or(options.pad_token);
  options.eos_token = special_tokens.eos;
  options.sentinels = special_tokens.sentinels;
  options.sentinels_of_tokenizer = options.sentinels.front() < tokenizer.vocab_size();
  special.check(context.vocab_size);
  options.target_length = t5_target_length(config, context.sequence_length);
  DatasetConfig plain = config;
  plain.type = names_corpora(config) ? DatasetType::kIndexed : DatasetType::kText;
  DatasetContext whole = context;
  whole.sequence_length = T5Dataset::raw_length(options) - 1;
  if (whole.sequence_length < 1) {
    const bool by_target = config.decoder_seq_length > 0 && context.sequence_length > 2;
    raise<ConfigError>("{} has no room for a span of text and the special tokens\n  try: {}",
                       by_target
                           ? fmt::format("dataset.decoder_seq_length={}", config.decoder_seq_length)
                           : fmt::format("train.seq_length={}", context.sequence_length),
                       by_target ? "dataset.decoder_seq_length=0" : "train.seq_length=16");
  }
  tell_short_inputs(options);
  Datasets sets;
  const TokenDatasets tokens = open_tokens(plain, whole, sets);
  sets.summary += special.summary();
  set_samples(
      tokens, [&](const auto& part, Part) { return std::make_shared<T5Dataset>(part, options); },
      sets);
  return sets;
}

} // namespace pentatron::data
