#include "pentatron/base/error.h"
#include "pentatron/base/format.h"
#include "pentatron/data/dataset.h"
#include "pentatron/data/gpt/fill_in_the_middle.h"
#include "pentatron/data/gpt/open_indexed.h"
#include "pentatron/data/token_samples.h"

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
  about.corpus =
      context.corpus ? context.corpus : std::make_shared<const Corpus>(config, context.tokenizer);
  about.split = split_corpus(*about.corpus, config.split);
  about.summary = about.corpus->report().to_string();
  about.files = about.corpus->files();
  about.train_size = size_of_part(*about.corpus, about.split.train);
  about.validation_size = size_of_part(*about.corpus, about.split.validation);
  about.test_size = size_of_part(*about.corpus, about.split.test);
  const auto part = [&](const char* name,
                        StreamRange range) -> std::shared_ptr<const TokenDataset> {
    const bool training = std::string_view(name) == "train";
    if (!training && range.size() <= context.sequence_length) {
      if (range.size() > 0) {
        about.summary += fmt::format("\n  no {} data: {}, less than one sample", name,
                                     counted(range.size(), "token"));
      }
      return nullptr;
    }
    return std::make_shared<TextDataset>(
        about.corpus, range,
        TextDataset::Options{
            .sequence_length = context.sequence_length, .seed = config.seed, .name = name});
  };
  TokenDatasets sets;
  sets.train = part("train", about.split.train);
  sets.validation = part("validation", about.split.validation);
  sets.test = part("test", about.split.test);
  return sets;
}

TokenDatasets open_batches(const DatasetConfig& config, const DatasetContext& context,
                           Datasets& about) {
  if (config.path.empty()) {
    throw ConfigError("dataset.type=batches needs a file, but dataset.path is empty\n  try: "
                      "dataset.path=FILE.safetensors");
  }
  const auto batches = std::make_shared<const BatchesDataset>(config.path, context.vocab_size);
  if (context.sequence_length != 0 && context.sequence_length != batches->sequence_length()) {
    raise<ConfigError>("the sequence length {} differs from that of {}, {}\n  try: a "
                       "sequence length of {}",
                       context.sequence_length, config.path, batches->sequence_length(),
                       batches->sequence_length());
  }
  about.file_batch_size = batches->batch_size();
  about.files = {config.path};
  about.summary = fmt::format("{} of {} of {}", counted(batches->steps(), "step"),
                              counted(batches->batch_size(), "sample"),
                              counted(batches->sequence_length(), "token"));
  return {.train = batches};
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

TokenDatasets open_tokens(const DatasetConfig& config, const DatasetContext& context,
                          Datasets& about) {
  if (config.type == DatasetType::kBatches) return open_batches(config, context, about);
  if (config.type == DatasetType::kMock) return open_mock(config, context, about);
  TokenDatasets sets = config.type == DatasetType::kIndexed ? open_indexed(config, context, about)
                                                            : open_text(config, context, about);
  if (config.fim_rate > 0) fill_in_the_middle(config, context, sets);
  return sets;
}

/// Tokens as fields. Every label of validation and test counts.
void set_samples(const TokenDatasets& tokens, TokenSamples::Options options, Datasets& sets) {
  const auto samples =
      [&](const std::shared_ptr<const TokenDataset>& part) -> std::shared_ptr<const Dataset> {
    return part == nullptr ? nullptr : std::make_shared<TokenSamples>(part, options);
  };
  sets.train = samples(tokens.train);
  options.eod_mask_loss = false;
  for (const TokenDatasets::Named& set : tokens.validation_sets)
    sets.validation_sets.push_back({set.name, samples(set.dataset)});
  sets.validation =
      sets.validation_sets.empty() ? samples(tokens.validation) : sets.validation_sets[0].dataset;
  sets.test = samples(tokens.test);
}

} // namespace

Datasets open_datasets(const DatasetConfig& config, const DatasetContext& context) {
  Datasets sets;
  const TokenDatasets tokens = open_tokens(config, context, sets);
  const bool documents = config.type == DatasetType::kText || config.type == DatasetType::kIndexed;
  set_samples(tokens,
              {.eod = documents && context.tokenizer != nullptr ? context.tokenizer->eod() : -1,
               .eod_mask_loss = config.eod_mask_loss,
               .reset_position_ids = config.reset_position_ids,
               .reset_attention_mask = config.reset_attention_mask},
              sets);
  return sets;
}

} // namespace pentatron::data
