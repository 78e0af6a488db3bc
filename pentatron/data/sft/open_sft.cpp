#include <filesystem>

#include "pentatron/base/error.h"
#include "pentatron/base/format.h"
#include "pentatron/data/input_files.h"
#include "pentatron/data/sft/sft_dataset.h"

namespace pentatron::data {

namespace {

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
    if (!context_.render_chat)
      sets_.summary += "\n  the tokenizer has no chat template: messages are written as ChatML";
    return std::move(sets_);
  }

 private:
  std::shared_ptr<const TaughtTexts> read(const std::string& paths, const char* option) {
    const auto texts = std::make_shared<const TaughtTexts>(
        split_paths(paths), config_, *context_.tokenizer,
        TaughtTexts::Options{.option = option,
                             .render = context_.render_chat,
                             .vocab_size = context_.vocab_size,
                             .sequence_length = context_.sequence_length});
    report_.merge(texts->report());
    sets_.files.insert(sets_.files.end(), texts->files().begin(), texts->files().end());
    const int64_t tokens = texts->num_tokens(0, texts->size());
    figures_ += fmt::format("\n  {}: {} of {} are learned", option,
                            counted(texts->num_taught(), "token"), format_grouped(tokens));
    if (texts->num_cut() > 0)
      figures_ += fmt::format("; {} cut to {}", counted(texts->num_cut(), "example"),
                              counted(context_.sequence_length + 1, "token"));
    if (texts->num_left_out() > 0)
      figures_ += fmt::format("; {} left out, without an answer in that length",
                              counted(texts->num_left_out(), "example"));
    return texts;
  }

  void add(Part part, const std::string& paths, const char* option) {
    if (paths.empty()) return;
    const auto texts = read(paths, option);
    add(part, texts, {0, texts->size()});
  }

  void add(Part part, const std::shared_ptr<const TaughtTexts>& texts, StreamRange range) {
    if (range.size() == 0) return;
    const int32_t eod = context_.tokenizer->eod();
    const auto samples = std::make_shared<SftDataset>(
        texts, range,
        SftDataset::Options{.sequence_length = context_.sequence_length,
                            .seed = config_.seed,
                            .name = std::string(name_of(part)),
                            .pack = config_.pack,
                            .ends = part != Part::kTrain,
                            .pad_token = eod >= 0 ? eod : 0});
    sets_[part] = samples;
    sets_.size(part) = {range.size(), texts->num_tokens(range.begin, range.end)};
    figures_ += fmt::format("\n  {}: {} in {}", name_of(part), counted(range.size(), "example"),
                            counted(samples->samples_per_epoch(), "sample"));
  }

  const DatasetConfig& config_;
  const DatasetContext& context_;
  InputReport report_{config_.on_bad_input};
  std::string figures_;
  Datasets sets_;
};

} // namespace

Datasets open_sft(const DatasetConfig& config, const DatasetContext& context) {
  return SftOpener(config, context).open();
}

} // namespace pentatron::data
