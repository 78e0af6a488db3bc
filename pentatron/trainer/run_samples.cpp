#include "pentatron/trainer/run_samples.h"

#include <algorithm>

#include <fmt/format.h>

#include "pentatron/base/error.h"
#include "pentatron/base/text.h"
#include "pentatron/data/sft/taught_text.h"
#include "pentatron/data/tokenizer/stream_decoder.h"
#include "pentatron/evaluation/evaluate_tasks.h"
#include "pentatron/models/model.h"

namespace pentatron::trainer {

void check_samples(const Config& config, config::Violations& violations) {
  using data::DatasetType;
  if (config.logger.sample_prompts.empty()) return;
  const auto add = [&](const std::string& why) {
    violations.add("logger.sample_prompts", "logger.sample_prompts " + why,
                   "logger.sample_prompts=[]");
  };
  const DatasetType type = config.dataset.type;
  const models::Generates generates = models::model_spec(config.model.with_one_layer()).generates;
  if (generates == models::Generates::kNothing)
    return add(fmt::format("needs a model that generates text, and model.type={} does not",
                           config::to_string(config.model.type)));
  if (type == DatasetType::kBatches || type == DatasetType::kMock)
    return add(fmt::format("needs a tokenizer, but dataset.type={} contains only token ids",
                           config::to_string(type)));
}

RunSamples::RunSamples(const Config& config, const data::Tokenizer& tokenizer)
    : interval_(config.logger.sample_interval), shown_(config.logger.sample_prompts) {
  if (shown_.empty()) return;
  options_ = {.sampling = {.temperature = config.logger.sample_temperature,
                           .num_tokens = std::min(tokenizer.vocab_size(), config.model.vocab_size)},
              .max_new_tokens = config.logger.sample_tokens,
              .seed = config.seed,
              .stop_tokens = evaluation::text_ends(tokenizer, config.tokenizer.path).stop};
  if (tokenizer.eod() >= 0) options_.stop_tokens.push_back(tokenizer.eod());
  const bool answers = models::model_spec(config.model).generates == models::Generates::kAnswer;
  const data::RenderChat render =
      config.tokenizer.path.empty()
          ? data::RenderChat()
          : data::open_chat_template(config.tokenizer.path, config.dataset.chat_date);
  for (const std::string& shown : shown_) {
    std::vector<int32_t> tokens;
    if (trim(shown).starts_with('{')) {
      try {
        tokens = data::prompt_of_record(shown, render, tokenizer, config.dataset.text_key);
      } catch (const DataError& error) {
        raise<ConfigError>("logger.sample_prompts contains {}, which is not an example: {}\n  try: "
                           "{{\"messages\": [{{\"role\": \"user\", \"content\": \"Hello\"}}]}}",
                           excerpt(shown), parts_of(error.what()).sentence);
      }
    } else {
      tokens = data::encode_begun(shown, tokenizer);
    }
    // An encoder reads a whole document; a text without a token begins behind one.
    if (answers || tokens.empty()) tokens.push_back(tokenizer.eod());
    prompts_.emplace_back(tokens.begin(), tokens.end());
  }
}

bool RunSamples::due(int64_t iteration, bool last) const {
  if (prompts_.empty()) return false;
  return last || (interval_ > 0 && iteration % interval_ == 0);
}

std::vector<WrittenSample> RunSamples::write(const parallelize::ModelView& model,
                                             const data::Tokenizer& tokenizer,
                                             int64_t sequence) const {
  std::vector<WrittenSample> written;
  std::vector<data::StreamDecoder> streams;
  for (size_t i = 0; i < prompts_.size(); ++i) {
    written.push_back({shown_[i], ""});
    streams.emplace_back(tokenizer);
    for (const int64_t token : prompts_[i]) streams.back().push(token);
  }
  generate::Options options = options_;
  options.context = sequence;
  generate::generate(model, prompts_, options, [&](size_t text, const generate::Drawn& drawn) {
    const bool end =
        std::ranges::find(options.stop_tokens, drawn.token) != options.stop_tokens.end();
    if (!end) written[text].text += streams[text].push(drawn.token);
    return true;
  });
  for (size_t i = 0; i < written.size(); ++i) written[i].text += streams[i].finish();
  return written;
}

} // namespace pentatron::trainer
