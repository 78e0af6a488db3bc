#include "pentatron/base/error.h"
#include "pentatron/base/format.h"
#include "pentatron/data/dataset.h"
#include "pentatron/data/gpt/fill_in_the_middle.h"
#include "pentatron/data/gpt/open_indexed.h"

namespace pentatron::data {

namespace {

Datasets open_text(const DatasetConfig& config, const DatasetContext& context) {
  PT_DCHECK(context.tokenizer != nullptr);
  const Tokenizer& tokenizer = *context.tokenizer;
  if (tokenizer.vocab_size() > context.vocab_size) {
    raise<ConfigError>(
        "model.vocab_size={} is smaller than the {} tokens of the tokenizer ({})\n  try: "
        "model.vocab_size={}",
        context.vocab_size, tokenizer.vocab_size(), tokenizer.name(), tokenizer.vocab_size());
  }
  Datasets sets;
  sets.corpus =
      context.corpus ? context.corpus : std::make_shared<const Corpus>(config, context.tokenizer);
  sets.split = split_corpus(*sets.corpus, config.split);
  sets.summary = sets.corpus->report().to_string();
  sets.files = sets.corpus->files();
  sets.train_size = size_of_part(*sets.corpus, sets.split.train);
  sets.validation_size = size_of_part(*sets.corpus, sets.split.validation);
  sets.test_size = size_of_part(*sets.corpus, sets.split.test);
  sets.eod = tokenizer.eod();
  const auto part = [&](const char* name, StreamRange range) -> std::shared_ptr<const Dataset> {
    const bool training = std::string_view(name) == "train";
    if (!training && range.size() <= context.sequence_length) {
      if (range.size() > 0) {
        sets.summary += fmt::format("\n  no {} data: {}, less than one sample", name,
                                    counted(range.size(), "token"));
      }
      return nullptr;
    }
    return std::make_shared<TextDataset>(
        sets.corpus, range,
        TextDataset::Options{
            .sequence_length = context.sequence_length, .seed = config.seed, .name = name});
  };
  sets.train = part("train", sets.split.train);
  sets.validation = part("validation", sets.split.validation);
  sets.test = part("test", sets.split.test);
  return sets;
}

Datasets open_batches(const DatasetConfig& config, const DatasetContext& context) {
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
  Datasets sets;
  sets.train = batches;
  sets.file_batch_size = batches->batch_size();
  sets.files = {config.path};
  sets.summary = fmt::format("{} of {} of {}", counted(batches->steps(), "step"),
                             counted(batches->batch_size(), "sample"),
                             counted(batches->sequence_length(), "token"));
  return sets;
}

/// The same parts with documents rearranged to fill in the middle.
void fill_in_the_middle(const DatasetConfig& config, const DatasetContext& context,
                        Datasets& sets) {
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
  const auto wrap = [&](std::shared_ptr<const Dataset>& part) {
    if (part != nullptr)
      part = std::make_shared<FillInTheMiddleDataset>(part, context.tokenizer, options);
  };
  wrap(sets.train);
  wrap(sets.validation);
  for (NamedDataset& set : sets.validation_sets) wrap(set.dataset);
  wrap(sets.test);
}

Datasets open_mock(const DatasetConfig& config, const DatasetContext& context) {
  if (context.sequence_length < 1)
    raise<ConfigError>("sequence length {} is not positive", context.sequence_length);
  Datasets sets;
  sets.train =
      std::make_shared<MockDataset>(context.vocab_size, context.sequence_length, config.seed);
  sets.validation =
      std::make_shared<MockDataset>(context.vocab_size, context.sequence_length, config.seed + 1);
  sets.summary = "random tokens";
  return sets;
}

} // namespace

Datasets open_datasets(const DatasetConfig& config, const DatasetContext& context) {
  if (config.type == DatasetType::kBatches) return open_batches(config, context);
  if (config.type == DatasetType::kMock) return open_mock(config, context);
  Datasets sets = config.type == DatasetType::kIndexed ? open_indexed(config, context)
                                                       : open_text(config, context);
  if (config.fim_rate > 0) fill_in_the_middle(config, context, sets);
  return sets;
}

} // namespace pentatron::data
