#include "pentatron/trainer/finetune_settings.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <set>

#include <fmt/format.h>

#include "pentatron/base/error.h"
#include "pentatron/base/format.h"
#include "pentatron/base/hf_cache.h"
#include "pentatron/base/json.h"
#include "pentatron/base/mapped_file.h"
#include "pentatron/base/naming.h"
#include "pentatron/base/paths.h"
#include "pentatron/base/text.h"
#include "pentatron/checkpoint/model_source.h"
#include "pentatron/checkpoint/sharded/folders.h"
#include "pentatron/data/input_files.h"
#include "pentatron/data/sft/sft_dataset.h"
#include "pentatron/models/model.h"
#include "pentatron/parallelize/parallelize.h"
#include "pentatron/trainer/described_run.h"
#include "pentatron/trainer/model_tokenizer.h"
#include "pentatron/trainer/run_files.h"
#include "pentatron/trainer/run_folders.h"
#include "pentatron/trainer/run_identity.h"

namespace pentatron::trainer {

namespace {

namespace fs = std::filesystem;

constexpr int64_t kLengthMultiple = 64, kLeastLength = 512, kMostTokens = 2048;
constexpr int64_t kStepsOfEpoch = 25, kMostBatch = 32;
constexpr int64_t kLeastToValidate = 40; ///< examples, of which a twentieth is kept aside
constexpr size_t kShownPrompts = 2, kLongestPrompt = 400;

/// Settings in their order; what the user gives is not among them.
class Settings {
 public:
  explicit Settings(const std::vector<std::string>& overrides) {
    for (const std::string& text : overrides) given_.insert(text.substr(0, text.find('=')));
  }
  bool given(const std::string& key) const { return given_.contains(key); }
  /// The first key that begins so; empty: none.
  std::string given_below(const std::string& begin) const {
    const auto found = given_.lower_bound(begin);
    return found != given_.end() && found->starts_with(begin) ? *found : "";
  }
  template <class Value>
  void choose(const std::string& key, const Value& value, const std::string& why) {
    if (!given(key)) chosen_.push_back({key, fmt::format("{}", value), why});
  }
  const std::vector<ChosenSetting>& chosen() const { return chosen_; }

  /// As load_config() takes them, with more behind them.
  std::vector<std::string> texts(const std::vector<std::string>& more) const {
    std::vector<std::string> all;
    for (const ChosenSetting& one : chosen_) all.push_back(one.key + "=" + one.value);
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

 private:
  std::set<std::string> given_;
  std::vector<ChosenSetting> chosen_;
};

bool is_run(const fs::path& where) {
  return checkpoint::recognise_model(resolve_model_path(where)) ==
         checkpoint::ModelFormat::kPentatron;
}

/// A run in the folder goes on from the model that it began with, whatever the command names.
void check_same_model(const FinetuneRequest& request, const fs::path& checkpoints) {
  const auto other =
      started_from_another(checkpoints / *checkpoint::latest_name(checkpoints), request.model);
  if (other)
    raise<ConfigError>("--out {} has a run that started from {}, not from {}\n  try: --out {}",
                       request.out, other->empty() ? "new weights" : *other, request.model,
                       shell_word(free_path(request.out).string()));
}

/// And with the examples that it began with.
void check_same_examples(const FinetuneRequest& request) {
  Config earlier;
  try {
    earlier = stored_config(MappedFile(fs::path(request.out) / kConfigFile).text());
  } catch (const Error&) { // what the run began with is not known
    return;
  }
  const auto is_same = [](const std::string& a, const std::string& b) {
    std::error_code error;
    return a == b || fs::equivalent(a, b, error);
  };
  const std::string& began = earlier.dataset.path;
  const std::vector<std::string> before = data::split_paths(began),
                                 now = data::split_paths(request.data);
  // Of a path that leads nowhere now it is not known what was there.
  if (!began.empty() && std::ranges::all_of(before, is_there) &&
      !std::ranges::equal(before, now, is_same))
    raise<ConfigError>("--out {} has a run on {}, not on {}\n  try: --out {}", request.out, began,
                       request.data, shell_word(free_path(request.out).string()));
}

/// What the command line says twice.
void check_overrides(const Settings& settings, const FinetuneRequest& request) {
  for (const auto& [key, argument] : {std::pair{"dataset.path", request.data},
                                      {"checkpoint.load", request.model},
                                      {"logger.dir", "--out " + request.out},
                                      {"checkpoint.save", "--out " + request.out}})
    if (settings.given(key))
      raise<ConfigError>(
          "{} and {} are both given, and finetune takes {} from {}\n  try: remove {}", argument,
          key, key, argument, key);
  for (const char* key : {"train.train_iters", "train.train_samples"})
    if (settings.given(key) && request.epochs)
      raise<ConfigError>("--epochs {:g} and {} are both given, and both set the length of the "
                         "run\n  try: remove {}",
                         *request.epochs, key, key);
  for (const char* key : {"dataset.train_data_path", "dataset.valid_data_path",
                          "dataset.test_data_path", "dataset.per_split_data_args_path"})
    if (settings.given(key))
      raise<ConfigError>("{} has no effect here: finetune divides the examples of {} by "
                         "dataset.split\n  try: remove {}, or pentatron train",
                         key, request.data, key);
  const std::string adapter = settings.given_below("peft.");
  if (request.all_weights && !adapter.empty())
    raise<ConfigError>(
        "--all-weights and {} are both given, but adapters freeze the weights\n  try: "
        "remove --all-weights, or remove {}",
        adapter, adapter);
}

void choose_model(Settings& settings, const FinetuneRequest& request, const fs::path& checkpoints) {
  if (checkpoint::latest_name(checkpoints)) {
    check_same_model(request, checkpoints);
    check_same_examples(request);
    settings.choose("checkpoint.load", "auto", "resume the existing run");
    return;
  }
  std::error_code error;
  if (!fs::exists(resolve_model_path(request.model), error))
    raise<CheckpointError>("{} does not exist\n  try: {}", request.model,
                           download_or(request.model, "the folder or file of the model"));
  if (request.model.ends_with(".gguf")) {
    settings.choose("checkpoint.load", request.model, "the model");
  } else if (is_run(request.model)) {
    settings.choose("checkpoint.load", request.model, "the model");
    settings.choose("checkpoint.finetune", true, "start a new run from its weights");
  } else {
    settings.choose("checkpoint.load", std::string(kHfPrefix) + request.model, "the model");
  }
}

void choose_training(Settings& settings, const FinetuneRequest& request, const Config& config) {
  const bool small = config.model.hidden_size <= 1024;
  const auto choose_min_lr = [&](double lr) {
    if (settings.given("optimizer.lr")) lr = config.optimizer.lr;
    const bool constant = config.scheduler.lr_decay_style == optim::LrDecayStyle::kConstant;
    if (constant && lr >= optim::OptimizerConfig().min_lr) return; // it has no effect
    settings.choose("optimizer.min_lr", fmt::format("{:g}", lr / 10), "a tenth of optimizer.lr");
  };
  if (request.all_weights) {
    settings.choose("optimizer.lr", small ? "5e-05" : "1e-05",
                    "low, because all weights are trained");
    choose_min_lr(small ? 5e-5 : 1e-5);
    settings.choose("optimizer.weight_decay", 0.01, "");
  } else {
    if (!settings.given("peft.load")) { // else as the adapter is
      settings.choose("peft.type", "lora", "train adapters and freeze the model");
      settings.choose("peft.r", 16, "");
      settings.choose("peft.alpha", 32, "");
    }
    settings.choose("optimizer.lr", small ? "0.001" : "0.0002",
                    "high, because adapters start at zero");
    choose_min_lr(small ? 1e-3 : 2e-4);
    settings.choose("optimizer.weight_decay", 0, "none, because adapters are small");
  }
  if (!settings.given("scheduler.lr_warmup_iters") &&
      !settings.given("scheduler.lr_warmup_samples"))
    settings.choose("scheduler.lr_warmup_fraction", 0.05, "");
}

struct Examples {
  std::shared_ptr<const data::Tokenizer> tokenizer;
  std::shared_ptr<const data::TaughtTexts> texts;
};

Examples read_examples(const Config& config, int64_t limit) {
  Examples examples;
  examples.tokenizer = naming("tokenizer.path=", config.tokenizer.path,
                              [&] { return data::make_tokenizer(config.tokenizer); });
  check_vocabulary(config, *examples.tokenizer);
  examples.texts = std::make_shared<const data::TaughtTexts>(
      data::split_paths(config.dataset.path), config.dataset, *examples.tokenizer,
      data::TaughtTexts::Options{
          .render = config.tokenizer.path.empty()
                        ? data::RenderChat()
                        : data::open_chat_template(config.tokenizer.path, config.dataset.chat_date),
          .vocab_size = config.model.vocab_size,
          .sequence_length = limit,
          .warns = false, // the run reads them again
          .reading = {.draw = config.logger.progress != ProgressBar::kOff}});
  return examples;
}

/// Prompts of the first examples of a range, as the list of a setting; empty: all are too long.
std::string prompts_of(const Examples& examples, data::StreamRange range) {
  Json prompts = Json::array();
  for (int64_t i = range.begin; i < range.end && prompts.size() < kShownPrompts; ++i) {
    const uint8_t* const taught = examples.texts->taught(i);
    const int64_t length = std::find(taught, taught + examples.texts->length(i), 1) - taught;
    const std::vector<int64_t> tokens(examples.texts->tokens(i),
                                      examples.texts->tokens(i) + length);
    const std::string text = examples.tokenizer->decode_with_special(tokens);
    if (text.empty() || text.size() > kLongestPrompt) continue;
    // A text that looks like an example would be read as one.
    prompts.push_back(trim(text).starts_with('{') ? dump_json({{"prompt", text}}) : text);
  }
  return prompts.empty() ? "" : dump_json(prompts);
}

int64_t samples_of(const Examples& examples, data::StreamRange range, const Config& config,
                   int64_t seq_length) {
  if (range.size() == 0) return 0;
  return data::SftDataset(examples.texts, range,
                          {.sequence_length = seq_length, .pack = config.dataset.pack})
      .samples_per_epoch();
}

void choose_lengths(Settings& settings, const FinetuneRequest& request, const Config& config) {
  const int64_t longest = config.model.longest_sequence().value_or(kMostTokens);
  const int64_t limit =
      settings.given("train.seq_length") ? config.train.seq_length : std::min(longest, kMostTokens);
  const Examples examples = read_examples(config, limit);
  const data::TaughtTexts& texts = *examples.texts;
  ExampleFigures figures{.examples = texts.size(), .limit = limit};
  for (int64_t i = 0; i < texts.size(); ++i)
    figures.longest = std::max(figures.longest, texts.length(i) - 1);
  const int64_t seq_length =
      settings.given("train.seq_length") ? limit : finetune_seq_length(figures);
  settings.choose("train.seq_length", seq_length,
                  figures.longest < limit
                      ? fmt::format("the longest of {} has {}", counted(texts.size(), "example"),
                                    counted(figures.longest + 1, "token"))
                      : "the longest sequence; longer examples are cut");
  std::string split = config.dataset.split;
  if (!settings.given("dataset.split")) {
    split = texts.size() >= kLeastToValidate ? "95,5,0" : "100,0,0";
    settings.choose("dataset.split", split,
                    texts.size() >= kLeastToValidate ? "use the last examples for validation"
                                                     : "too few examples for validation");
  }
  const data::Split parts = data::split_samples(texts.size(), split);
  const int64_t samples = samples_of(examples, parts.train, config, seq_length);
  const int64_t validation = samples_of(examples, parts.validation, config, seq_length);
  const int dp = parallelize::data_parallel_size(config.parallel, request.world_size);
  BatchFigures batches = finetune_batches(samples, seq_length, dp);
  if (settings.given("train.global_batch_size"))
    batches.global_batch_size = config.train.global_batch_size;
  if (settings.given("train.global_batch_size") || settings.given("train.micro_batch_size")) {
    batches.micro_batch_size =
        std::gcd(settings.given("train.micro_batch_size") ? config.train.micro_batch_size
                                                          : batches.micro_batch_size,
                 std::max<int64_t>(1, batches.global_batch_size / dp));
    if (settings.given("train.micro_batch_size") && !settings.given("train.global_batch_size"))
      batches.global_batch_size =
          dp * config.train.micro_batch_size *
          std::max<int64_t>(1, batches.global_batch_size / (dp * config.train.micro_batch_size));
  }
  settings.choose("train.micro_batch_size", batches.micro_batch_size, "");
  settings.choose("train.global_batch_size", batches.global_batch_size,
                  fmt::format("the examples fill {}", counted(samples, "sample")));
  const int64_t global = batches.global_batch_size;
  const double epochs = request.epochs.value_or(kEpochs);
  const auto iterations =
      std::max<int64_t>(1, static_cast<int64_t>(std::ceil(epochs * static_cast<double>(samples) /
                                                          static_cast<double>(global))));
  if (!settings.given("train.train_samples"))
    settings.choose("train.train_iters", iterations,
                    fmt::format("{:g} pass{} over the examples", epochs, epochs == 1 ? "" : "es"));
  const int64_t epoch = std::max<int64_t>(1, samples / global);
  if (validation > 0) {
    settings.choose("train.eval_interval", epoch, "once an epoch");
    if (!config.dataset.full_validation)
      settings.choose("train.eval_iters", std::min<int64_t>(20, (validation + global - 1) / global),
                      "");
  }
  settings.choose("checkpoint.save_interval", epoch, "once an epoch");
  settings.choose("logger.log_interval", std::max<int64_t>(1, iterations / 20), "");
  const std::string prompts = prompts_of(examples, validation > 0 ? parts.validation : parts.train);
  if (prompts.empty()) return;
  if (settings.given("logger.sample_prompts") && config.logger.sample_prompts.empty()) return;
  settings.choose("logger.sample_prompts", prompts, "");
  settings.choose("logger.sample_interval", epoch, "once an epoch");
  settings.choose("logger.sample_temperature", 0, "");
}

/// Before its data, which another model reads in another way.
void check_generates(const FinetuneRequest& request, const Settings& settings) {
  const auto load = std::ranges::find(settings.chosen(), "checkpoint.load", &ChosenSetting::key);
  const models::ModelConfig model = checkpoint::open_model(load->value)->config();
  const models::Generates generates = models::model_spec(model).generates;
  if (generates != models::Generates::kContinuation)
    raise<ConfigError>("{} has model.type={}, but finetune only trains models that continue a "
                       "text\n  try: pentatron train with dataset.type={}",
                       request.model, config::to_string(model.type),
                       generates == models::Generates::kAnswer ? "sft" : "classification");
}

} // namespace

int64_t finetune_seq_length(const ExampleFigures& examples) {
  const int64_t rounded =
      (examples.longest + kLengthMultiple - 1) / kLengthMultiple * kLengthMultiple;
  return std::min(std::max(rounded, kLeastLength), examples.limit);
}

BatchFigures finetune_batches(int64_t samples, int64_t seq_length, int64_t data_parallel_size) {
  int64_t of_rank = 1;
  while (2 * of_rank <= kMostBatch && samples / (2 * of_rank * data_parallel_size) >= kStepsOfEpoch)
    of_rank *= 2;
  int64_t micro = 1;
  while (2 * micro <= of_rank && 2 * micro * seq_length <= kMostTokens) micro *= 2;
  return {.seq_length = seq_length,
          .micro_batch_size = micro,
          .global_batch_size = of_rank * data_parallel_size};
}

FinetuneRun make_finetune_run(const FinetuneRequest& asked) {
  Settings settings(asked.overrides);
  check_overrides(settings, asked);
  FinetuneRequest request = asked;
  const auto none = std::ranges::find(asked.overrides, "peft.type=none");
  request.all_weights = asked.all_weights || none != asked.overrides.end();
  const std::string checkpoints = (fs::path(request.out) / "checkpoints").string();
  choose_model(settings, request, checkpoints);
  if (!checkpoint::latest_name(checkpoints)) check_generates(request, settings);
  settings.choose("dataset.type", "sft", "");
  settings.choose("dataset.path", request.data, "the examples");
  settings.choose("logger.dir", request.out, "metrics, plot and settings of the run");
  settings.choose("checkpoint.save", checkpoints, "");
  settings.choose("checkpoint.export_hf", true,
                  request.all_weights ? "also export the model in Hugging Face format"
                                      : "also export the adapters in Hugging Face PEFT format");
  std::vector<std::string> first = request.overrides;
  const auto at_first = [&](const char* key, const std::string& value) {
    if (!settings.given(key)) first.push_back(fmt::format("{}={}", key, value));
  };
  at_first("train.seq_length", "1");
  at_first("train.micro_batch_size", "1");
  at_first("optimizer.min_lr", "0");
  if (!settings.given("train.micro_batch_size"))
    at_first("train.global_batch_size", fmt::to_string(request.world_size));
  if (!request.all_weights && !settings.given("peft.load")) at_first("peft.type", "lora");
  const Config with_model =
      load_config(std::vector<std::string>{}, settings.texts(first), {}, request.world_size);
  choose_training(settings, request, with_model);
  choose_lengths(settings, request, with_model);
  return {.config = load_config(std::vector<std::string>{}, settings.texts(request.overrides), {},
                                request.world_size),
          .chosen = settings.chosen()};
}

void check_out(const FinetuneRequest& request, const Config& config) {
  try {
    check_folders(config);
  } catch (const ConfigError& error) {
    raise<ConfigError>("--out {}: {}\n  try: --out {}", request.out,
                       parts_of(error.what()).sentence,
                       shell_word(free_path(request.out).string()));
  }
}

} // namespace pentatron::trainer
