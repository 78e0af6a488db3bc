#include "pentatron/data/check_fields.h"

#include <algorithm>
#include <optional>
#include <string>

#include <fmt/ranges.h>

#include "pentatron/base/error.h"
#include "pentatron/config/config.h"
#include "pentatron/data/gpt/data_paths.h"
#include "pentatron/data/objectives/bert_dataset.h"
#include "pentatron/data/objectives/classification_dataset.h"
#include "pentatron/data/objectives/open_t5.h"
#include "pentatron/data/objectives/t5_dataset.h"
#include "pentatron/data/sft/sft_dataset.h"

namespace pentatron::data {

namespace {

/// The first of `wanted` that is not given; null if all are.
const BatchField* first_missing(const std::vector<BatchField>& wanted,
                                const std::vector<BatchField>& given) {
  const auto is_given = [&](const BatchField& field) {
    return std::ranges::any_of(given, [&](const BatchField& other) {
      return other.name == field.name && other.stream == field.stream && other.type == field.type &&
             other.next_token == field.next_token;
    });
  };
  const auto missing = std::ranges::find_if_not(wanted, is_given);
  return missing == wanted.end() ? nullptr : &*missing;
}

/// "labels of the decoder", "labels of each sample".
std::string described(const BatchField& field) {
  std::string text = field.name;
  if (field.stream.empty()) {
    text += " of each sample";
  } else if (field.stream != "tokens") {
    text += " of the " + field.stream;
  }
  if (field.next_token) text += " (the next tokens)";
  if (field.type == FieldType::kFloat64) text += " (not integers)";
  return text;
}

/// The settings of a dataset that gives `wanted`. The same type with another head comes first, then
/// the type for text or corpora, as the paths name the one or the other.
std::string settings_for(const DatasetConfig& config, const std::vector<BatchField>& wanted) {
  const bool corpora = config.type != DatasetType::kClassification &&
                       config.type != DatasetType::kSft && names_corpora(config);
  for (const DatasetType type :
       {config.type, corpora ? DatasetType::kIndexed : DatasetType::kText, DatasetType::kBert,
        DatasetType::kT5, DatasetType::kClassification}) {
    for (const BinaryHead head : {config.bert_binary_head, BinaryHead::kNextSentence}) {
      DatasetConfig other = config;
      other.type = type;
      other.bert_binary_head = head;
      if (first_missing(wanted, given_fields(other, wanted)) != nullptr) continue;
      std::vector<std::string> settings;
      if (type != config.type)
        settings.push_back(fmt::format("dataset.type={}", config::to_string(type)));
      if (head != config.bert_binary_head)
        settings.push_back(fmt::format("dataset.bert_binary_head={}", config::to_string(head)));
      if (type == DatasetType::kClassification) settings.emplace_back("dataset.path=FILE.jsonl");
      return fmt::format("{}", fmt::join(settings, " and "));
    }
  }
  return "dataset.type=batches and dataset.path=FILE.safetensors";
}

/// Values that the model has no row for.
void check_limits(const DatasetConfig& config, const std::vector<BatchField>& wanted,
                  const std::vector<BatchField>& given) {
  for (const BatchField& field : wanted) {
    const auto source = std::ranges::find(given, field.name, &BatchField::name);
    if (field.limit == 0 || source == given.end() || source->limit <= field.limit) continue;
    DatasetConfig single = config;
    single.bert_binary_head = BinaryHead::kNone;
    const bool needs_pairs = first_missing(wanted, given_fields(single, wanted)) != nullptr;
    raise<ConfigError>("dataset.bert_binary_head={} gives {} up to {}, but the model has only {}\n"
                       "  try: {}",
                       config::to_string(config.bert_binary_head), field.name, source->limit - 1,
                       field.limit,
                       needs_pairs ? fmt::format("model.num_tokentypes={}", source->limit)
                                   : "dataset.bert_binary_head=none");
  }
}

} // namespace

std::vector<BatchField> given_fields(const DatasetConfig& config,
                                     const std::vector<BatchField>& wanted) {
  switch (config.type) {
  case DatasetType::kBert:
    return BertDataset::fields_with(config.bert_binary_head);
  case DatasetType::kT5:
    return T5Dataset::fields_with();
  case DatasetType::kClassification: {
    const BatchField* labels = ClassificationDataset::labels_of(wanted);
    return ClassificationDataset::fields_with(labels == nullptr ? FieldType::kInt64 : labels->type);
  }
  case DatasetType::kBatches:
    return wanted;
  case DatasetType::kSft: {
    const bool decoder = std::ranges::find(wanted, "decoder", &BatchField::stream) != wanted.end();
    return decoder ? T5Dataset::fields_with() : next_token_fields();
  }
  default:
    return next_token_fields();
  }
}

bool can_give(DatasetType type, const std::vector<BatchField>& wanted) {
  for (const BinaryHead head : {BinaryHead::kNextSentence, BinaryHead::kNone}) {
    DatasetConfig config;
    config.type = type;
    config.bert_binary_head = head;
    if (first_missing(wanted, given_fields(config, wanted)) == nullptr) return true;
  }
  return false;
}

std::optional<DatasetType> type_for_text(const std::vector<BatchField>& wanted) {
  for (const DatasetType type :
       {DatasetType::kText, DatasetType::kBert, DatasetType::kT5, DatasetType::kClassification})
    if (can_give(type, wanted)) return type;
  return std::nullopt;
}

int64_t target_length(const DatasetConfig& config, int64_t input_length) {
  switch (config.type) {
  case DatasetType::kT5:
    return t5_target_length(config, input_length);
  case DatasetType::kSft:
    return sft_target_length(config, input_length);
  default:
    return input_length;
  }
}

double share_of_targets(const DatasetConfig& config) {
  return config.type == DatasetType::kBert ? config.mask_prob : 1;
}

void check_fields(const DatasetConfig& config, const std::vector<BatchField>& wanted) {
  const std::vector<BatchField> given = given_fields(config, wanted);
  const BatchField* missing = first_missing(wanted, given);
  if (missing == nullptr) return check_limits(config, wanted, given);
  std::vector<std::string> names;
  for (const BatchField& field : given) names.push_back(described(field));
  raise<ConfigError>(
      "dataset.type={} does not provide {}, which the model needs; it provides {}\n  try: {}",
      config::to_string(config.type), described(*missing), fmt::join(names, ", "),
      settings_for(config, wanted));
}

} // namespace pentatron::data
