#include "pentatron/data/config.h"

#include <algorithm>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "pentatron/base/error.h"
#include "pentatron/base/text.h"
#include "pentatron/config/config.h"
#include "pentatron/data/dataset.h"
#include "pentatron/data/gpt/gpt_dataset.h"
#include "pentatron/data/tokenizer/chat_template.h"

namespace pentatron::data {

namespace {

/// A key that only some types read, and whether it has another value than at first.
struct KeyOfTypes {
  std::string_view name;
  bool changed;
  std::string value;
  std::vector<DatasetType> types;
};

/// Keys of some types that have no effect with this one.
void validate_objective(const DatasetConfig& c, config::Violations& violations,
                        std::string_view path) {
  const DatasetConfig plain;
  const auto text = [](const auto& value) { return fmt::to_string(value); };
  const auto bert = DatasetType::kBert, t5 = DatasetType::kT5,
             classes = DatasetType::kClassification;
  const std::vector<DatasetType> streams{DatasetType::kText, DatasetType::kIndexed,
                                         DatasetType::kBatches, DatasetType::kMock};
  const std::vector<KeyOfTypes> keys{
      {"mask_prob", c.mask_prob != plain.mask_prob, text(c.mask_prob), {bert, t5}},
      {"short_seq_prob", c.short_seq_prob != plain.short_seq_prob, text(c.short_seq_prob), {bert}},
      {"masking_max_ngram",
       c.masking_max_ngram != plain.masking_max_ngram,
       text(c.masking_max_ngram),
       {bert}},
      {"masking_do_full_word", !c.masking_do_full_word, "false", {bert}},
      {"bert_binary_head",
       c.bert_binary_head != plain.bert_binary_head,
       std::string(config::to_string(c.bert_binary_head)),
       {bert}},
      {"mean_noise_span_length",
       c.mean_noise_span_length != plain.mean_noise_span_length,
       text(c.mean_noise_span_length),
       {t5}},
      {"decoder_seq_length",
       c.decoder_seq_length != 0,
       text(c.decoder_seq_length),
       {t5, DatasetType::kSft}},
      {"vocab_extra_ids",
       c.vocab_extra_ids != plain.vocab_extra_ids,
       text(c.vocab_extra_ids),
       {t5}},
      {"cls_token", !c.cls_token.empty(), c.cls_token, {bert, classes}},
      {"sep_token", !c.sep_token.empty(), c.sep_token, {bert, classes}},
      {"mask_token", !c.mask_token.empty(), c.mask_token, {bert}},
      {"pad_token", !c.pad_token.empty(), c.pad_token, {bert, t5, classes, DatasetType::kSft}},
      {"eos_token", !c.eos_token.empty(), c.eos_token, {t5, DatasetType::kSft}},
      {"text_pair_key", c.text_pair_key != plain.text_pair_key, c.text_pair_key, {classes}},
      {"label_key", c.label_key != plain.label_key, c.label_key, {classes}},
      {"pack", !c.pack, "false", {DatasetType::kSft}},
      {"group_by_length", c.group_by_length, "true", {DatasetType::kSft}},
      {"chat_date", !c.chat_date.empty(), c.chat_date, {DatasetType::kSft}},
      {"eod_mask_loss", c.eod_mask_loss, "true", streams},
      {"reset_position_ids", c.reset_position_ids, "true", streams},
      {"reset_attention_mask", c.reset_attention_mask, "true", streams},
  };
  for (const KeyOfTypes& key : keys) {
    if (!key.changed || std::ranges::find(key.types, c.type) != key.types.end()) continue;
    const std::string type =
        fmt::format("{}={}", config::join(path, "type"), config::to_string(key.types.front()));
    const std::string name = config::join(path, key.name);
    // The value as it is by default; other keys may speak for another type.
    violations.add(name, fmt::format("{}={} has no effect without {}", name, key.value, type),
                   fmt::format("{}={}", name, config::get(plain, key.name)));
  }
}

/// Whether the shares are numbers of which some are left, as the reader of this data reads them.
void check_split(const DatasetConfig& c, const std::string& key, config::Violations& violations) {
  try {
    if (c.type == DatasetType::kIndexed && c.order == SampleOrder::kMegatron)
      megatron_split(c.split, 0, Part::kTrain);
    else
      split_samples(0, c.split);
  } catch (const ConfigError& error) {
    const MessageParts parts = parts_of(error.what());
    violations.add(key, std::string(parts.sentence), std::string(parts.remedy));
  }
}

} // namespace

void DatasetConfig::validate(config::Violations& violations, std::string_view path) const {
  const auto key = [&](std::string_view name) {
    return path.empty() ? std::string(name) : fmt::format("{}.{}", path, name);
  };
  const auto needs = [&](bool asked, std::string_view name, std::string_view value,
                         std::string_view condition, const std::string& attempt) {
    if (!asked) return;
    violations.add(key(name),
                   fmt::format("{}={} has no effect without {}", key(name), value, condition),
                   attempt);
  };
  if (!chat_date.empty() && !tokenizer::read_date(chat_date))
    violations.add(key("chat_date"),
                   fmt::format("{}={} is not a date", key("chat_date"), excerpt(chat_date)),
                   key("chat_date") + "=2025-01-31");
  const bool indexed = type == DatasetType::kIndexed;
  const bool megatron = order == SampleOrder::kMegatron;
  check_split(*this, key("split"), violations);
  if (megatron && seed > std::numeric_limits<uint32_t>::max())
    violations.add(key("seed"),
                   fmt::format("{}={} does not fit into 32 bits, the limit of {}=megatron",
                               key("seed"), seed, key("order")),
                   key("seed") + "=1234");
  const bool documents = indexed || type == DatasetType::kText;
  const bool objective = type == DatasetType::kBert || type == DatasetType::kT5;
  const bool corpora = indexed || objective;
  // Files of their own for each part, or one that is cut.
  const bool records = type == DatasetType::kClassification || type == DatasetType::kSft;
  const bool batches = type == DatasetType::kBatches;
  const std::string use_indexed = key("type") + "=indexed";
  const std::string with_indexed = use_indexed;
  // Other types were chosen for the model.
  needs(megatron && !indexed, "order", "megatron", with_indexed,
        type == DatasetType::kText ? use_indexed : key("order") + "=stable");
  const bool parts =
      !train_data_path.empty() || !valid_data_path.empty() || !test_data_path.empty();
  // Prepared batches have a file for training and may have one for validation.
  const bool own_parts = parts && !(batches && train_data_path.empty() && test_data_path.empty());
  const auto& [part, value] =
      !train_data_path.empty()   ? std::pair{"train_data_path", train_data_path}
      : !valid_data_path.empty() ? std::pair{"valid_data_path", valid_data_path}
                                 : std::pair{"test_data_path", test_data_path};
  const auto documents_in = [&](const std::string& text) {
    return std::ranges::any_of(
        std::array{".jsonl", ".ndjson", ".json", ".txt", ".md", ".parquet", ".gz", ".zst"},
        [&](const char* ending) { return text.ends_with(ending); });
  };
  needs(own_parts && !corpora && !records, part, value, with_indexed,
        documents_in(value) ? fmt::format("{}={} and {}=\"\"", key("path"), value, key(part))
                            : use_indexed);
  needs(!per_split_data_args_path.empty() && !corpora, "per_split_data_args_path",
        per_split_data_args_path, with_indexed,
        type == DatasetType::kText ? use_indexed : key("per_split_data_args_path") + "=\"\"");
  const int ways = (this->path.empty() ? 0 : 1) + (own_parts ? 1 : 0) +
                   (per_split_data_args_path.empty() ? 0 : 1);
  if (indexed || records ? ways != 1 : corpora && ways > 1) {
    std::vector<std::string> remedy;
    if (ways == 0) remedy.push_back(key("path") + (indexed ? "=PREFIX" : "=FILE.jsonl"));
    const auto remove = [&](std::string_view name, bool given) {
      if (ways > 1 && given) remedy.push_back(fmt::format("{}=\"\"", key(name)));
    };
    remove("path", !this->path.empty());
    remove("per_split_data_args_path", parts && !per_split_data_args_path.empty());
    violations.add(key("path"),
                   fmt::format("{}={} takes {} one of {}, {} (with valid_data_path and "
                               "test_data_path){}, but {} given",
                               key("type"), config::to_string(type),
                               corpora && !indexed ? "at most" : "exactly", key("path"),
                               key("train_data_path"),
                               corpora ? " and " + key("per_split_data_args_path") : "",
                               ways == 0 ? "none is" : "more are"),
                   fmt::format("{}", fmt::join(remedy, " and ")));
  }
  needs(multiple_validation_sets && valid_data_path.empty() && per_split_data_args_path.empty(),
        "multiple_validation_sets", "true", key("valid_data_path"),
        key("multiple_validation_sets") + "=false");
  needs(!data_cache_path.empty() && !megatron, "data_cache_path", data_cache_path,
        key("order") + "=megatron", key("data_cache_path") + "=\"\"");
  needs(!drop_last_partial_validation_sequence && !(megatron && full_validation),
        "drop_last_partial_validation_sequence", "false",
        fmt::format("{}=megatron and {}=true", key("order"), key("full_validation")),
        key("drop_last_partial_validation_sequence") + "=true");
  validate_objective(*this, violations, path);
  if (fim_rate > 0) {
    needs(!documents, "fim_rate", fmt::to_string(fim_rate), "documents of " + key("type") + "=text",
          key("fim_rate") + "=0");
    const std::set<int64_t> marks{fim_prefix_token, fim_middle_token, fim_suffix_token,
                                  fim_pad_token};
    if (marks.size() != 4 || *marks.begin() < 0) {
      violations.add(
          key("fim_rate"),
          fmt::format("{}={} needs four different tokens, but {}={}, {}={}, {}={}, {}={}",
                      key("fim_rate"), fim_rate, key("fim_prefix_token"), fim_prefix_token,
                      key("fim_middle_token"), fim_middle_token, key("fim_suffix_token"),
                      fim_suffix_token, key("fim_pad_token"), fim_pad_token),
          "the numbers of the tokenizer's special tokens");
    }
  }
}

} // namespace pentatron::data
