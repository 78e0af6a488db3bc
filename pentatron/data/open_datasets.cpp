#include <algorithm>

#include <fmt/ranges.h>

#include "pentatron/base/error.h"
#include "pentatron/base/format.h"
#include "pentatron/data/batches_dataset.h"
#include "pentatron/data/dataset.h"
#include "pentatron/data/gpt/data_paths.h"
#include "pentatron/data/gpt/fill_in_the_middle.h"
#include "pentatron/data/gpt/open_indexed.h"
#include "pentatron/data/objectives/open_bert.h"
#include "pentatron/data/objectives/special_tokens.h"
#include "pentatron/data/objectives/t5_dataset.h"
#include "pentatron/data/token_samples.h"

namespace pentatron::data {

namespace {

/// What the model reads.
std::vector<BatchField> fields_of(const DatasetContext& context) {
  return context.fields.empty() ? next_token_fields(context.vocab_size) : context.fields;
}

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

Datasets open_batches(const DatasetConfig& config, const DatasetContext& context) {
  if (config.path.empty()) {
    throw ConfigError("dataset.type=batches needs a file, but dataset.path is empty\n  try: "
                      "dataset.path=FILE.safetensors");
  }
  const auto batches = std::make_shared<const BatchesDataset>(config.path, fields_of(context));
  if (context.sequence_length != 0 && context.sequence_length != batches->sequence_length()) {
    raise<ConfigError>("the sequence length {} differs from that of {}, {}\n  try: a "
                       "sequence length of {}",
                       context.sequence_length, config.path, batches->sequence_length(),
                       batches->sequence_length());
  }
  Datasets sets;
  sets.train = batches;
  sets.file_batch_size = batches->batch_size();
  sets.files = {config.path};
  std::vector<std::string> lengths;
  for (const BatchStream& stream : batches->streams())
    lengths.push_back(counted(stream.sequence_length, "token"));
  sets.summary = fmt::format("{} of {} of {}", counted(batches->steps(), "step"),
                             counted(batches->batch_size(), "sample"), fmt::join(lengths, " and "));
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

TokenDatasets open_tokens(const DatasetConfig& config, const DatasetContext& context,
                          Datasets& about) {
  if (config.type == DatasetType::kMock) return open_mock(config, context, about);
  TokenDatasets sets = config.type == DatasetType::kIndexed ? open_indexed(config, context, about)
                                                            : open_text(config, context, about);
  if (config.fim_rate > 0) fill_in_the_middle(config, context, sets);
  return sets;
}

/// What `make` makes of the tokens of each part.
template <class F> void set_samples(const TokenDatasets& tokens, F&& make, Datasets& sets) {
  const auto samples = [&](const std::shared_ptr<const TokenDataset>& tokens_of_part,
                           Part part = Part::kValidation) -> std::shared_ptr<const Dataset> {
    return tokens_of_part == nullptr ? nullptr : make(tokens_of_part, part);
  };
  sets.train = samples(tokens.train, Part::kTrain);
  for (const TokenDatasets::Named& set : tokens.validation_sets)
    sets.validation_sets.push_back({set.name, samples(set.dataset)});
  sets.validation =
      sets.validation_sets.empty() ? samples(tokens.validation) : sets.validation_sets[0].dataset;
  sets.test = samples(tokens.test, Part::kTest);
}

Datasets open_token_samples(const DatasetConfig& config, const DatasetContext& context) {
  Datasets sets;
  const TokenDatasets tokens = open_tokens(config, context, sets);
  const bool documents = config.type == DatasetType::kText || config.type == DatasetType::kIndexed;
  const auto make = [&](const auto& part_tokens, Part part) {
    // Every label of validation and test counts.
    return std::make_shared<TokenSamples>(
        part_tokens,
        TokenSamples::Options{
            .eod = documents && context.tokenizer != nullptr ? context.tokenizer->eod() : -1,
            .eod_mask_loss = config.eod_mask_loss && part == Part::kTrain,
            .reset_position_ids = config.reset_position_ids,
            .reset_attention_mask = config.reset_attention_mask});
  };
  set_samples(tokens, make, sets);
  return sets;
}

/// Throws ConfigError for a field that the model reads and the dataset does not give.
void check_fields(const DatasetConfig& config, const std::vector<BatchField>& wanted,
                  const std::vector<BatchField>& given) {
  for (const BatchField& field : wanted) {
    const auto same = [&](const BatchField& other) {
      return other.name == field.name && other.stream == field.stream && other.type == field.type &&
             other.next_token == field.next_token;
    };
    if (std::ranges::any_of(given, same)) continue;
    std::vector<std::string> names;
    for (const BatchField& other : given) names.push_back(other.name);
    raise<ConfigError>("dataset.type={} does not give {}{}, which the model reads; it gives {}",
                       config::to_string(config.type), field.name,
                       field.stream.empty() || field.stream == "tokens" ? ""
                                                                        : " of the " + field.stream,
                       fmt::join(names, ", "));
  }
}

/// The spans of T5 are taken out of the tokens that the other types read.
Datasets open_t5(const DatasetConfig& config, const DatasetContext& context) {
  const Tokenizer& tokenizer = *context.tokenizer;
  SpecialTokens special(tokenizer);
  T5Dataset::Options options{.input_length = context.sequence_length,
                             .noise_density = config.mask_prob,
                             .mean_noise_span_length = config.mean_noise_span_length,
                             .seed = config.seed};
  options.pad_token = special.find("dataset.pad_token", config.pad_token, kPadNames);
  options.start_token = options.pad_token;
  const bool by_name = !config.eos_token.empty() || tokenizer.token_id(kEosNames[0]);
  options.eos_token = by_name || tokenizer.eod() < 0
                          ? special.find("dataset.eos_token", config.eos_token, kEosNames)
                          : tokenizer.eod();
  options.sentinels = special.sentinels(config.vocab_extra_ids);
  special.check(context.vocab_size);
  options.target_length = config.decoder_seq_length > 0 ? config.decoder_seq_length
                                                        : T5Dataset::full_target_length(options);
  DatasetConfig plain = config;
  plain.type = names_corpora(config) ? DatasetType::kIndexed : DatasetType::kText;
  DatasetContext whole = context;
  whole.sequence_length = T5Dataset::raw_length(options) - 1;
  Datasets sets;
  const TokenDatasets tokens = open_tokens(plain, whole, sets);
  if (const std::string added = special.added_text(); !added.empty())
    sets.summary += "\n  tokens above the vocabulary: " + added;
  set_samples(
      tokens, [&](const auto& part, Part) { return std::make_shared<T5Dataset>(part, options); },
      sets);
  return sets;
}

Datasets open_parts(const DatasetConfig& config, const DatasetContext& context) {
  switch (config.type) {
  case DatasetType::kBatches:
    return open_batches(config, context);
  case DatasetType::kBert:
    return open_bert(config, context);
  case DatasetType::kT5:
    return open_t5(config, context);
  default:
    return open_token_samples(config, context);
  }
}

} // namespace

void Datasets::set(Part part, std::shared_ptr<const Dataset> dataset, PartSize size) {
  (part == Part::kTrain        ? train
   : part == Part::kValidation ? validation
                               : test) = std::move(dataset);
  (part == Part::kTrain        ? train_size
   : part == Part::kValidation ? validation_size
                               : test_size) = size;
}

Datasets open_datasets(const DatasetConfig& config, const DatasetContext& context) {
  Datasets sets = open_parts(config, context);
  if (sets.train != nullptr) check_fields(config, fields_of(context), sets.train->fields());
  return sets;
}

} // namespace pentatron::data
