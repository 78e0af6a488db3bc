#include "pentatron/data/open_tokens.h"

#include "pentatron/base/error.h"
#include "pentatron/base/format.h"
#include "pentatron/data/gpt/fill_in_the_middle.h"
#include "pentatron/data/gpt/open_indexed.h"

namespace pentatron::data {

namespace {

TokenDatasets open_text(const DatasetConfig& config, const DatasetContext& context,
                        Datasets& about) {
  PT_DCHECK(context.tokenizer != nullptr);
  const Tokenizer& tokenizer = *context.tokenizer;
  if (tokenizer.vocab_size() > context.vocab_size) {
    raise<ConfigError>(
        "model.vocab_size={} is smaller than the {} tokens of the tokenizer ({})\n  try: "
        "model.vocab_size={}",
        context.vocab_size, tokenizer.vocab_size(), tokenizer.name(), tokenizer.vocab_size());
  }
  about.corpus = shared_corpus(config, context.tokenizer);
  about.corpus->wait(context.reading);
  about.split = split_corpus(*about.corpus, config.split);
  about.report = about.corpus->report();
  about.summary = about.report->to_string();
  about.files = about.corpus->files();
  const auto open_part = [&](Part part) -> std::shared_ptr<const TokenDataset> {
    const StreamRange range = about.split[part];
    about.size(part) = size_of_part(*about.corpus, range);
    if (part != Part::kTrain && range.size() <= context.sequence_length) {
      if (range.size() > 0) {
        about.summary += fmt::format("\n  no {} data: {}, less than one sample", name_of(part),
                                     counted(range.size(), "token"));
      }
      return nullptr;
    }
    return std::make_shared<TextDataset>(
        about.corpus, range,
        TextDataset::Options{.sequence_length = context.sequence_length,
                             .seed = config.seed,
                             .name = std::string(name_of(part))});
  };
  TokenDatasets sets;
  try {
    sets.train = open_part(Part::kTrain);
  } catch (const ConfigError& error) {
    throw ConfigError(about.report->with_skips(error.what()));
  }
  sets.validation = open_part(Part::kValidation);
  sets.test = open_part(Part::kTest);
  return sets;
}

/// The same parts with documents rearranged to fill in the middle.
void fill_in_the_middle(const DatasetConfig& config, const DatasetContext& context,
                        TokenDatasets& sets) {
  const FillInTheMiddleDataset::Options options{.rate = config.fim_rate,
                                                .spm_rate = config.fim_spm_rate,
                                                .prefix_token = config.fim_prefix_token,
                                                .middle_token = config.fim_middle_token,
                                                .suffix_token = config.fim_suffix_token,
                                                .pad_token = config.fim_pad_token,
                                                .seed = config.seed};
  for (const int64_t token :
       {options.prefix_token, options.middle_token, options.suffix_token, options.pad_token}) {
    if (token >= context.vocab_size) {
      raise<ConfigError>(
          "dataset.fim_rate={} uses token {}, which is outside model.vocab_size={}\n  try: "
          "model.vocab_size={}",
          config.fim_rate, token, context.vocab_size, token + 1);
    }
  }
  const auto wrap = [&](std::shared_ptr<const TokenDataset>& part) {
    if (part != nullptr)
      part = std::make_shared<FillInTheMiddleDataset>(part, context.tokenizer, options);
  };
  wrap(sets.train);
  wrap(sets.validation);
  for (TokenDatasets::Named& set : sets.validation_sets) wrap(set.dataset);
  wrap(sets.test);
}

TokenDatasets open_mock(const DatasetConfig& config, const DatasetContext& context,
                        Datasets& about) {
  if (context.sequence_length < 1)
    raise<ConfigError>("sequence length {} is not positive", context.sequence_length);
  TokenDatasets sets;
  sets.train =
      std::make_shared<MockDataset>(context.vocab_size, context.sequence_length, config.seed);
  sets.validation =
      std::make_shared<MockDataset>(context.vocab_size, context.sequence_length, config.seed + 1);
  about.summary = "random tokens";
  return sets;
}

} // namespace

TokenDatasets open_tokens(const DatasetConfig& config, const DatasetContext& context,
                          Datasets& about) {
  if (config.type == DatasetType::kMock) return open_mock(config, context, about);
  TokenDatasets sets = config.type == DatasetType::kIndexed ? open_indexed(config, context, about)
                                                            : open_text(config, context, about);
  if (config.fim_rate > 0) fill_in_the_middle(config, context, sets);
  return sets;
}

} // namespace pentatron::data
