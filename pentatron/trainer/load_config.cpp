#include <algorithm>
#include <filesystem>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "pentatron/base/error.h"
#include "pentatron/base/hf_cache.h"
#include "pentatron/base/naming.h"
#include "pentatron/checkpoint/adapters/adapter_source.h"
#include "pentatron/checkpoint/model_source.h"
#include "pentatron/checkpoint/sharded/folders.h"
#include "pentatron/data/check_fields.h"
#include "pentatron/data/preprocess/open_tokenizer.h"
#include "pentatron/models/model.h"
#include "pentatron/models/presets.h"
#include "pentatron/parallelize/parallelize.h"
#include "pentatron/trainer/adapters.h"
#include "pentatron/trainer/check_run.h"
#include "pentatron/trainer/config.h"
#include "pentatron/trainer/described_run.h"
#include "pentatron/trainer/differences.h"
#include "pentatron/trainer/model_tokenizer.h"
#include "pentatron/trainer/precision.h"

namespace pentatron::trainer {

namespace {

/// tokenizer.path=bytes is tokenizer.type=bytes, as `bytes` is wherever a command takes a
/// tokenizer.
void name_bytes_by_type(data::TokenizerConfig& tokenizer) {
  using data::TokenizerType;
  if (tokenizer.path != data::kBytesTokenizer ||
      (tokenizer.type != TokenizerType::kAuto && tokenizer.type != TokenizerType::kBytes))
    return;
  tokenizer.type = TokenizerType::kBytes;
  tokenizer.path.clear();
}

struct LoadedModel {
  models::ModelConfig config;
  bool resumed = false;              ///< its run goes on, with the model that is given
  std::filesystem::path folder = {}; ///< of a checkpoint
};

std::optional<LoadedModel> loaded_model(const CheckpointConfig& c) {
  if (const auto foreign = foreign_model(c)) {
    const auto name = after_hf_prefix(*foreign);
    return naming(name ? "checkpoint.load=hf:" : "checkpoint.load=", name.value_or(*foreign), [&] {
      return LoadedModel{.config = checkpoint::open_model(*foreign)->config()};
    });
  }
  const std::optional<DescribedRun> run = described_run(c);
  if (!run || run->manifest.config_yaml.empty()) return std::nullopt;
  if (c.finetune && run->manifest.attachments.contains(checkpoint::kAdapterBase))
    return LoadedModel{.config = checkpoint::open_model(run->folder.string())->config(),
                       .folder = run->folder}; // merged: of a tied model, with two tables
  // Adapters stand beside the model that they were trained for.
  const bool own_model = run->trained && !c.finetune && !run->config.peft.on();
  return LoadedModel{.config = run->config.model, .resumed = own_model, .folder = run->folder};
}

/// A model that is not there has no configuration, and keys that rely on it are blamed.
void require_model(const CheckpointConfig& c) {
  if (!c.finetune || c.load.empty() || loads_own(c) || c.node_local) return;
  const auto found =
      checkpoint::newest_checkpoint(c.load, checkpoint::VerifyScope::kWeightsStructure);
  if (!found) report_found(c, found);
}

/// The names of the classes that the loaded head has learned; none of a head that begins anew.
std::vector<std::string> learned_names(const std::optional<LoadedModel>& loaded,
                                       const models::ModelConfig& model) {
  if (!loaded || loaded->config.head != model.head || loaded->config.num_labels != model.num_labels)
    return {};
  return loaded->config.label_names;
}

/// Classes keep their numbers; those without a name may get one.
void keep_label_names(Config& config, const std::vector<std::string>& learned,
                      config::Violations& violations) {
  std::vector<std::string>& names = config.model.label_names;
  const bool begins_with_them =
      names.size() >= learned.size() && std::equal(learned.begin(), learned.end(), names.begin());
  if (!names.empty() && !begins_with_them)
    violations.add("model.label_names",
                   fmt::format("model.label_names=[{}] does not match the classes of the model in "
                               "checkpoint.load={}, which are [{}]",
                               fmt::join(names, ","), config.checkpoint.load,
                               fmt::join(learned, ",")),
                   fmt::format("model.label_names=[{}]", fmt::join(learned, ",")));
  if (names.empty()) names = learned;
}

/// Takes over what the adapter of peft.load decides; false: it cannot be read.
bool adopt(checkpoint::AdapterSettings& settings, const std::string& load,
           config::Violations& violations) {
  try {
    adopt_adapter(settings, load);
    return true;
  } catch (const Error& error) {
    const MessageParts parts = parts_of(error.what());
    violations.add("peft.load", fmt::format("peft.load={}: {}", load, parts.sentence),
                   parts.remedy.empty() ? "peft.load=\"\"" : std::string(parts.remedy));
    return false;
  }
}

/// And keeps it.
void keep_adopted(const checkpoint::AdapterSettings& adopted,
                  const checkpoint::AdapterSettings& settings, config::Violations& violations) {
  for (const config::Difference& d : config::diff(settings, adopted)) {
    if (d.on_resume != config::OnResume::kState) continue;
    const std::string key = "peft." + d.path;
    violations.add(key,
                   fmt::format("{}={} does not match the adapter in peft.load={}, which has {}",
                               key, d.before, settings.load, d.after),
                   fmt::format("{}={}", key, d.after));
  }
}

/// Sizes without which no weight of an imported model fits. Reported alone: the rest would be about
/// a model that nobody means.
void keep_sizes(const Config& config, const models::ModelConfig& imported,
                config::Violations& violations) {
  if (config.checkpoint.strictness == checkpoint::Strictness::kLogAll) return;
  const models::ModelConfig& model = config.model;
  const std::pair<const char*, std::pair<int64_t, int64_t>> sizes[] = {
      {"model.hidden_size", {model.hidden_size, imported.hidden_size}},
      {"model.num_layers", {model.num_layers, imported.num_layers}},
      {"model.vocab_size", {model.vocab_size, imported.vocab_size}}};
  bool differs = false;
  for (const auto& [key, both] : sizes) {
    const auto [given, own] = both;
    const bool fewer_layers = key == std::string_view("model.num_layers") && given < own;
    if (given == own ||
        (fewer_layers && config.checkpoint.strictness == checkpoint::Strictness::kLogUnexpected))
      continue;
    differs = true;
    violations.add(key,
                   fmt::format("{}={} does not match the model in checkpoint.load={}, which has {}",
                               key, given, config.checkpoint.load, own),
                   fmt::format("{}={}{}", key, own,
                               fewer_layers
                                   ? fmt::format(", or checkpoint.strictness=log_unexpected "
                                                 "to keep its first {}",
                                                 given)
                                   : ""));
  }
  if (differs) violations.throw_if_any();
}

/// `typed`: the configuration as it would be with the type of the loaded model.
void require_type(const LoadedModel& loaded, const Config& config, Config typed) {
  typed.model.type = loaded.config.type;
  Config saved = typed;
  saved.model = loaded.config;
  const std::string keys = assignments(saved, typed, {config::OnResume::kModel});
  const std::string type(config::to_string(loaded.config.type));
  raise<ConfigError>("{} contains a model of model.type={}, but the configuration has model.type={}"
                     "\n  try: model.type={}{}{}, or checkpoint.finetune=true to start a new run "
                     "from its weights",
                     loaded.folder.string(), type, config::to_string(config.model.type), type,
                     keys.empty() ? "" : " and ", keys);
}

} // namespace

Config load_config(const std::optional<std::string>& file,
                   const std::vector<std::string>& overrides, Config base, int world_size) {
  const auto files = file ? std::vector<std::string>{*file} : std::vector<std::string>{};
  return load_config(files, overrides, std::move(base), world_size);
}

Config load_config(const std::vector<std::string>& files, const std::vector<std::string>& overrides,
                   Config base, int world_size, config::Violations* origins) {
  const auto apply = [&](Config& config, config::Violations& violations) {
    for (const std::string& file : files) config::apply_file(config, file, violations);
    for (const std::string& override_text : overrides)
      config::apply_override(config, override_text, violations);
  };
  // A first pass only finds out the preset; what it complains about, the second one says again.
  constexpr int64_t kNotGiven = -1;
  Config first = base;
  first.model.vocab_size = kNotGiven;
  config::Violations ignored;
  apply(first, ignored);
  Config config = std::move(base);
  if (first.mixed_precision.recipe != config.mixed_precision.recipe)
    apply_recipe(first.mixed_precision.recipe, config);
  bool vocabulary_known = first.model.vocab_size != kNotGiven ||
                          config.model.vocab_size != models::ModelConfig{}.vocab_size;
  const bool data_known = config.dataset.type != data::DatasetConfig{}.type;
  if (first.model.type != config.model.type)
    config.model = models::ModelConfig::default_of(first.model.type);
  std::string origin; // of a model that has its type already
  if (!first.model.preset.empty() && first.model.preset != config.model.preset) {
    config.model = models::preset(first.model.preset);
    origin = "model.preset=" + first.model.preset;
  }
  const std::optional<LoadedModel> loaded = loaded_model(first.checkpoint);
  if (loaded && !loaded->resumed) {
    config.model = loaded->config;
    origin = "checkpoint.load=" + first.checkpoint.load;
  }
  if (loaded) config.model.label_names.clear(); // kept if the head is
  vocabulary_known = vocabulary_known || !origin.empty();
  const models::ModelType type = config.model.type;
  config::Violations violations;
  const bool adopts = !first.peft.load.empty() && adopt(config.peft, first.peft.load, violations);
  const checkpoint::AdapterSettings adopted = config.peft;
  apply(config, violations);
  if (adopts) {
    check_adopted(adopted, config, violations);
    keep_adopted(adopted, config.peft, violations);
  }
  if (!origin.empty() && config.model.type != type) {
    violations.add("model.type",
                   fmt::format("model.type={} does not match {}, whose type is {}",
                               config::to_string(config.model.type), origin,
                               config::to_string(type)),
                   fmt::format("model.type={}", config::to_string(type)));
    violations.throw_if_any(); // the rest would be about a model that nobody means
  }
  if (loaded && !loaded->resumed && foreign_model(first.checkpoint))
    keep_sizes(config, loaded->config, violations);
  if (loaded && loaded->resumed && loaded->config.type != config.model.type) {
    Config typed = config;
    typed.model = models::ModelConfig::default_of(loaded->config.type);
    apply(typed, ignored);
    require_type(*loaded, config, std::move(typed));
  }
  keep_label_names(config, learned_names(loaded, config.model), violations);
  if (!data_known && violations.where("dataset.type").empty())
    if (const auto text =
            data::type_for_text(models::model_spec(config.model.with_one_layer()).fields))
      config.dataset.type = *text;
  name_bytes_by_type(config.tokenizer);
  adopt_model_tokenizer(config);
  if (!vocabulary_known)
    config.model.vocab_size = tokenizer_vocabulary(config).value_or(config.model.vocab_size);
  check_config(config, world_size, violations);
  if (!violations.empty() && !loaded) require_model(first.checkpoint);
  violations.throw_if_any();
  if (origins != nullptr) *origins = std::move(violations);
  return config;
}

} // namespace pentatron::trainer
