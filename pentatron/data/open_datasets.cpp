#include <fmt/ranges.h>

#include "pentatron/base/error.h"
#include "pentatron/base/format.h"
#include "pentatron/base/naming.h"
#include "pentatron/data/batches_dataset.h"
#include "pentatron/data/check_fields.h"
#include "pentatron/data/dataset.h"
#include "pentatron/data/objectives/open_bert.h"
#include "pentatron/data/objectives/open_classification.h"
#include "pentatron/data/objectives/open_t5.h"
#include "pentatron/data/open_tokens.h"
#include "pentatron/data/sft/sft_dataset.h"
#include "pentatron/data/token_samples.h"

namespace pentatron::data {

namespace {

/// What the model reads.
std::vector<BatchField> fields_of(const DatasetContext& context) {
  return context.fields.empty() ? next_token_fields(context.vocab_size) : context.fields;
}

/// "512 tokens and 128 tokens", of each stream.
std::string lengths_of(const Dataset& dataset) {
  std::vector<std::string> lengths;
  for (const BatchStream& stream : dataset.streams())
    lengths.push_back(counted(stream.sequence_length, "token"));
  return fmt::format("{}", fmt::join(lengths, " and "));
}

Datasets open_batches(const DatasetConfig& config, const DatasetContext& context) {
  if (config.path.empty()) {
    throw ConfigError("dataset.type=batches needs a file, but dataset.path is empty\n  try: "
                      "dataset.path=FILE.safetensors");
  }
  const auto open = [&](const char* key, const std::string& path) {
    return naming(
        key, path, [&] { return std::make_shared<const BatchesDataset>(path, fields_of(context)); },
        "a Safetensors file with the tensors that docs/data.md describes");
  };
  const auto batches = open("dataset.path=", config.path);
  if (context.sequence_length != 0 && context.sequence_length != batches->sequence_length()) {
    raise<ConfigError>("the sequence length {} differs from the sequence length of {}, {}\n  try: "
                       "a sequence length of {}",
                       context.sequence_length, config.path, batches->sequence_length(),
                       batches->sequence_length());
  }
  Datasets sets;
  sets.train = batches;
  sets.file_batch_size = batches->batch_size();
  sets.files = {config.path};
  sets.summary = fmt::format("{} of {} of {}", counted(batches->steps(), "step"),
                             counted(batches->batch_size(), "sample"), lengths_of(*batches));
  if (const std::string& path = config.valid_data_path; !path.empty()) {
    const auto validation = open("dataset.valid_data_path=", path);
    if (validation->streams() != batches->streams())
      raise<ConfigError>(
          "dataset.valid_data_path={} has sequences of {}, but {} has sequences of {}\n  "
          "try: files with sequences of one length",
          path, lengths_of(*validation), config.path, lengths_of(*batches));
    sets.validation = validation;
    if (config.multiple_validation_sets)
      sets.validation_sets = {{std::filesystem::path(path).filename().string(), validation}};
    sets.files.emplace_back(path);
    sets.summary += fmt::format("\n  validation: {}", counted(*validation->size(), "sample"));
  }
  return sets;
}

/// Keys that look for the ends of documents have an effect only if the token can occur.
void require_end_token(const DatasetConfig& config, int64_t eod, int64_t vocab_size) {
  const char* const key = config.eod_mask_loss          ? "eod_mask_loss"
                          : config.reset_attention_mask ? "reset_attention_mask"
                          : config.reset_position_ids   ? "reset_position_ids"
                                                        : nullptr;
  if (key == nullptr || vocab_size <= 0 || (eod >= 0 && eod < vocab_size)) return;
  raise<ConfigError>(
      "dataset.{}=true needs the token that ends documents, but that of the tokenizer is {}, and "
      "the model has the tokens 0 to {}\n  try: tokenizer.path=FILE_OR_FOLDER, or "
      "tokenizer.type=null tokenizer.vocab_size=N if token N ends the documents of the corpus",
      key, eod, vocab_size - 1);
}

Datasets open_token_samples(const DatasetConfig& config, const DatasetContext& context) {
  Datasets sets;
  const TokenDatasets tokens = open_tokens(config, context, sets);
  const bool documents = config.type == DatasetType::kText || config.type == DatasetType::kIndexed;
  if (documents && context.tokenizer != nullptr)
    require_end_token(config, context.tokenizer->eod(), context.vocab_size);
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

Datasets open_parts(const DatasetConfig& config, const DatasetContext& context) {
  switch (config.type) {
  case DatasetType::kBatches:
    return open_batches(config, context);
  case DatasetType::kBert:
    return open_bert(config, context);
  case DatasetType::kT5:
    return open_t5(config, context);
  case DatasetType::kClassification:
    return open_classification(config, context);
  case DatasetType::kSft:
    return open_sft(config, context);
  default:
    return open_token_samples(config, context);
  }
}

} // namespace

int64_t Dataset::sequence_length(std::string_view stream) const {
  for (const BatchStream& own : streams())
    if (own.name == stream) return own.sequence_length;
  raise<Error>("internal error: samples have no {}", stream);
}

Datasets open_datasets(const DatasetConfig& config, const DatasetContext& context) {
  check_fields(config, fields_of(context));
  return open_parts(config, context);
}

} // namespace pentatron::data
