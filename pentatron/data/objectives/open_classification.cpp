#include "pentatron/data/objectives/open_classification.h"

#include <algorithm>
#include <filesystem>
#include <map>

#include <fmt/ranges.h>

#include "pentatron/base/error.h"
#include "pentatron/base/format.h"
#include "pentatron/data/input_files.h"
#include "pentatron/data/objectives/classification_dataset.h"
#include "pentatron/data/objectives/special_tokens.h"
#include "pentatron/data/tokenizer/post_processor.h"

namespace pentatron::data {

namespace {

constexpr int64_t kMostTypes = 65536; // what TokenBuffer keeps in 16 bits
constexpr size_t kShownClasses = 20;

class ClassificationOpener {
 public:
  ClassificationOpener(const DatasetConfig& config, const DatasetContext& context)
      : config_(config), context_(context), special_(*context.tokenizer) {
    if (const BatchField* labels = ClassificationDataset::labels_of(context.fields)) {
      reading_.label_type = labels->type;
      reading_.num_classes = labels->limit;
    }
    samples_ = {.sequence_length = context.sequence_length,
                .seed = config.seed,
                .pad_token = special_.find("dataset.pad_token", config.pad_token, kPadNames),
                .label_type = reading_.label_type};
    reading_.encode = make_encode();
    reading_.vocab_size = special_.vocab_size();
    reading_.class_names = context.label_names;
    reading_.reading = context.reading;
    special_.check(context.vocab_size);
  }

  Datasets open() {
    if (config_.path.empty()) {
      open_each();
    } else {
      const auto texts = read(config_.path, "dataset.path");
      sets_.split = split_samples(texts->size(), config_.split);
      for (const Part part : kAllParts) add(part, texts, sets_.split[part]);
    }
    sets_.report = report_;
    sets_.label_names = reading_.class_names;
    sets_.summary = fmt::format("{}{}{}", report_.to_string(), labels_, special_.summary());
    return std::move(sets_);
  }

 private:
  /// The tokenizer's own template, or that of BERT if it has none or its tokens are given.
  decltype(LabelledTexts::Options::encode) make_encode() {
    const std::shared_ptr<const Tokenizer> tokenizer = context_.tokenizer;
    std::vector<int32_t> around;
    tokenizer->encode_with_special("", around);
    const bool own = !around.empty() && config_.cls_token.empty() && config_.sep_token.empty();
    tokenizer::PostProcessor bert;
    if (!own) {
      const auto find = [&](std::string_view key, const std::string& value, auto& names) {
        return static_cast<int32_t>(special_.find(key, value, names));
      };
      const int32_t cls = find("dataset.cls_token", config_.cls_token, kClsNames);
      bert = tokenizer::bert_post_processor(
          cls, find("dataset.sep_token", config_.sep_token, kSepNames));
    }
    const int64_t specials = own ? std::ssize(around) : 2;
    if (context_.sequence_length <= specials)
      raise<ConfigError>("train.seq_length={} leaves no room for text beside {} special tokens\n  "
                         "try: train.seq_length={}",
                         context_.sequence_length, specials, 2 * specials + 2);
    const auto types = std::ranges::find(context_.fields, "token_type_ids", &BatchField::name);
    const bool limited = types != context_.fields.end() && types->limit > 0;
    const int64_t num_types = limited ? types->limit : kMostTypes;
    const int64_t most = context_.sequence_length;
    return [=](std::string_view text, std::optional<std::string_view> second) {
      EncodedPair out;
      if (own) {
        out = tokenizer->encode_pair(text, second, most);
      } else {
        std::vector<int32_t> first_tokens;
        std::optional<std::vector<int32_t>> second_tokens;
        tokenizer->encode(text, first_tokens);
        if (second) tokenizer->encode(*second, second_tokens.emplace());
        out =
            tokenizer::post_process(bert, std::move(first_tokens), std::move(second_tokens), most);
      }
      const auto highest = std::ranges::max_element(out.types);
      if (*highest >= num_types)
        raise<DataError>(
            "the tokenizer assigns type {} to a token, but the model has {} types\n  try: "
            "model.num_tokentypes={} for a new model, or samples of a single text",
            *highest, num_types, *highest + 1);
      return out;
    };
  }

  std::shared_ptr<const LabelledTexts> read(const std::string& paths, const char* option) {
    reading_.option = option;
    const auto texts = std::make_shared<const LabelledTexts>(split_paths(paths), config_, reading_);
    report_.merge(texts->report());
    sets_.files.insert(sets_.files.end(), texts->files().begin(), texts->files().end());
    if (reading_.class_names.empty() && !texts->class_names().empty()) {
      reading_.class_names = texts->class_names();
      reading_.names_from = option;
    }
    return texts;
  }

  /// A file or more for each part; the training data decide which names there are.
  void open_each() {
    if (config_.train_data_path.empty())
      throw ConfigError("dataset.type=classification has no training data\n  try: "
                        "dataset.train_data_path=FILE.jsonl");
    const auto whole = [&](Part part, const std::string& paths, const char* option) {
      if (paths.empty()) return;
      const auto texts = read(paths, option);
      add(part, texts, {0, texts->size()});
    };
    whole(Part::kTrain, config_.train_data_path, "dataset.train_data_path");
    if (config_.multiple_validation_sets) {
      PartSize all;
      for (const std::string& path : split_paths(config_.valid_data_path)) {
        whole(Part::kValidation, path, "dataset.valid_data_path");
        sets_.validation_sets.push_back(
            {std::filesystem::path(path).filename().string(), sets_.validation});
        all.documents += sets_.validation_size.documents;
        all.tokens += sets_.validation_size.tokens;
      }
      sets_.validation = sets_.validation_sets[0].dataset;
      sets_.validation_size = all;
    } else {
      whole(Part::kValidation, config_.valid_data_path, "dataset.valid_data_path");
    }
    whole(Part::kTest, config_.test_data_path, "dataset.test_data_path");
  }

  void add(Part part, const std::shared_ptr<const LabelledTexts>& texts, StreamRange range) {
    if (range.size() == 0) return;
    ClassificationDataset::Options options = samples_;
    options.name = std::string(name_of(part));
    options.ends = part != Part::kTrain;
    sets_[part] = std::make_shared<ClassificationDataset>(texts, range, options);
    sets_.size(part) = {range.size(), texts->num_tokens(range.begin, range.end)};
    if (part == Part::kTrain) describe_labels(*texts, range);
  }

  /// How many samples of the training data have each class, or where its numbers lie.
  void describe_labels(const LabelledTexts& texts, StreamRange range) {
    if (reading_.label_type == FieldType::kFloat64) {
      double low = texts.label(range.begin), high = low;
      for (int64_t i = range.begin; i < range.end; ++i) {
        low = std::min(low, texts.label(i));
        high = std::max(high, texts.label(i));
      }
      labels_ = fmt::format("\n  labels in the training data: {} to {}", low, high);
      return;
    }
    const std::vector<std::string>& names = texts.class_names();
    std::map<int64_t, int64_t> counts;
    for (int64_t c = 0; c < std::max(std::ssize(names), reading_.num_classes); ++c) counts[c] = 0;
    for (int64_t i = range.begin; i < range.end; ++i)
      ++counts[static_cast<int64_t>(texts.label(i))];
    std::vector<std::string> shown;
    for (const auto& [c, count] : counts) {
      if (shown.size() == kShownClasses) {
        shown.emplace_back("...");
        break;
      }
      const std::string name =
          c < std::ssize(names) ? "=" + names[static_cast<size_t>(c)] : std::string();
      shown.push_back(fmt::format("{}{} ({})", c, name, count));
    }
    labels_ = fmt::format("\n  labels in the training data, with their samples: {}",
                          fmt::join(shown, ", "));
  }

  const DatasetConfig& config_;
  const DatasetContext& context_;
  SpecialTokens special_;
  LabelledTexts::Options reading_;
  ClassificationDataset::Options samples_;
  InputReport report_{config_.on_bad_input};
  std::string labels_;
  Datasets sets_;
};

} // namespace

Datasets open_classification(const DatasetConfig& config, const DatasetContext& context) {
  return ClassificationOpener(config, context).open();
}

} // namespace pentatron::data
