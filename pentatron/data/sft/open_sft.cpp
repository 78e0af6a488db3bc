#include <algorithm>
#include <filesystem>
#include <optional>

#include "pentatron/base/error.h"
#include "pentatron/base/format.h"
#include "pentatron/data/input_files.h"
#include "pentatron/data/objectives/special_tokens.h"
#include "pentatron/data/sft/sft_dataset.h"

namespace pentatron::data {

namespace {

/// What the decoder of a model with an encoder begins with, unless with padding.
bool has_decoder(const std::vector<BatchField>& fields) {
  return std::ranges::any_of(fields, [](const auto& field) { return field.stream == "decoder"; });
}

class SftOpener {
 public:
  SftOpener(const DatasetConfig& config, const DatasetContext& context)
      : config_(config), context_(context) {
    PT_DCHECK(context.tokenizer != nullptr);
    const Tokenizer& tokenizer = *context.tokenizer;
    if (tokenizer.vocab_size() > context.vocab_size)
      raise<ConfigError>("model.vocab_size={} is smaller than the {} tokens of the tokenizer ({})\n"
                         "  try: model.vocab_size={}",
                         context.vocab_size, tokenizer.vocab_size(), tokenizer.name(),
                         tokenizer.vocab_size());
    const int32_t eod = tokenizer.eod();
    pad_ = eod >= 0 ? eod : 0;
    if (!has_decoder(context.fields)) {
      check_without_encoder();
      return;
    }
    SpecialTokens special(tokenizer);
    pad_ = special.find("dataset.pad_token", config.pad_token, kPadNames);
    end_ = static_cast<int32_t>(find_eos(config, tokenizer, special));
    special.check(context.vocab_size);
    target_length_ = sft_target_length(config, context.sequence_length);
  }

  Datasets open() {
    if (config_.path.empty()) {
      add(Part::kTrain, config_.train_data_path, "dataset.train_data_path");
      add(Part::kValidation, config_.valid_data_path, "dataset.valid_data_path");
      add(Part::kTest, config_.test_data_path, "dataset.test_data_path");
    } else {
      const auto texts = read(config_.path, "dataset.path");
      sets_.split = split_samples(texts->size(), config_.split);
      for (const Part part : kAllParts) add(part, texts, sets_.split[part]);
    }
    sets_.report = report_;
    sets_.summary = report_.to_string() + figures_;
    if (!context_.render_chat && !target_length_)
      sets_.summary += "\n  the tokenizer has no chat template: messages are written as ChatML";
    return std::move(sets_);
  }

 private:
  void check_without_encoder() const {
    if (config_.group_by_length && config_.pack)
      throw ConfigError("dataset.group_by_length=true has no effect with dataset.pack=true, which "
                        "fills samples\n  try: dataset.pack=false");
    const auto refuse = [](const char* key, const std::string& value) {
      raise<ConfigError>("dataset.{}={} has no effect with dataset.type=sft on a model without an "
                         "encoder\n  try: remove dataset.{}",
                         key, value, key);
    };
    if (config_.decoder_seq_length > 0)
      refuse("decoder_seq_length", fmt::to_string(config_.decoder_seq_length));
    if (!config_.pad_token.empty()) refuse("pad_token", config_.pad_token);
    if (!config_.eos_token.empty()) refuse("eos_token", config_.eos_token);
  }

  std::shared_ptr<const TaughtTexts> read(const std::string& paths, const char* option) {
    const auto texts = std::make_shared<const TaughtTexts>(
        split_paths(paths), config_, *context_.tokenizer,
        TaughtTexts::Options{.option = option,
                             .render = context_.render_chat,
                             .vocab_size = context_.vocab_size,
                             .sequence_length = context_.sequence_length,
                             .target_length = target_length_,
                             .end_token = end_,
                             .reading = context_.reading});
    report_.merge(texts->report());
    sets_.files.insert(sets_.files.end(), texts->files().begin(), texts->files().end());
    const int64_t tokens = texts->num_tokens(0, texts->size());
    figures_ += fmt::format("\n  {}: {} of {} are trained on", option,
                            counted(texts->num_taught(), "token"), format_grouped(tokens));
    for (const std::string& count : texts->incomplete()) figures_ += "; " + count;
    return texts;
  }

  void add(Part part, const std::string& paths, const char* option) {
    if (paths.empty()) return;
    const auto texts = read(paths, option);
    add(part, texts, {0, texts->size()});
  }

  void add(Part part, const std::shared_ptr<const TaughtTexts>& texts, StreamRange range) {
    if (range.size() == 0) return;
    const LengthOrder::Options order{.seed = config_.seed,
                                     .name = std::string(name_of(part)),
                                     .grouped = config_.group_by_length && part == Part::kTrain,
                                     .ends = part != Part::kTrain};
    const std::shared_ptr<const Dataset> samples = make_samples(texts, range, order);
    sets_[part] = samples;
    sets_.size(part) = {range.size(), texts->num_tokens(range.begin, range.end)};
    figures_ += fmt::format("\n  {}: {} in {}", name_of(part), counted(range.size(), "example"),
                            counted(samples->samples_per_epoch(), "sample"));
  }

  std::shared_ptr<const Dataset> make_samples(const std::shared_ptr<const TaughtTexts>& texts,
                                              StreamRange range,
                                              const LengthOrder::Options& order) const {
    if (target_length_)
      return std::make_shared<TaughtPairs>(
          texts, range,
          TaughtPairs::Options{.input_length = context_.sequence_length,
                               .target_length = *target_length_,
                               .order = order,
                               .pad_token = pad_,
                               .start_token = context_.start_token().value_or(pad_)});
    return std::make_shared<SftDataset>(
        texts, range,
        SftDataset::Options{.sequence_length = context_.sequence_length,
                            .order = order,
                            .pack = config_.pack,
                            .pad_token = pad_});
  }

  const DatasetConfig& config_;
  const DatasetContext& context_;
  int64_t pad_ = 0;
  int32_t end_ = -1;
  std::optional<int64_t> target_length_; ///< of a model with an encoder
  InputReport report_{config_.on_bad_input};
  std::string figures_;
  Datasets sets_;
};

} // namespace

int64_t sft_target_length(const DatasetConfig& config, int64_t sequence_length) {
  return config.decoder_seq_length > 0 ? config.decoder_seq_length : sequence_length;
}

Datasets open_sft(const DatasetConfig& config, const DatasetContext& context) {
  return SftOpener(config, context).open();
}

} // namespace pentatron::data
