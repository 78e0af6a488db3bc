#include "pentatron/trainer/starting_weights.h"

#include <fmt/ranges.h>

#include "pentatron/base/descriptors.h"
#include "pentatron/base/error.h"
#include "pentatron/base/log.h"
#include "pentatron/base/naming.h"
#include "pentatron/checkpoint/run_checkpoint.h"
#include "pentatron/checkpoint/sharded/attachments.h"
#include "pentatron/comm/long_work.h"
#include "pentatron/models/param_specs.h"
#include "pentatron/models/word_table.h"
#include "pentatron/trainer/differences.h"

namespace pentatron::trainer {

std::optional<std::string>
weights_elsewhere(const CheckpointConfig& config,
                  const std::optional<checkpoint::FoundCheckpoint>& found) {
  if (found && config.finetune && checkpoint::holds_adapters(found->folder))
    return found->folder.string();
  return foreign_model(config);
}

std::vector<std::string> check_tensors(const checkpoint::ModelSource& source,
                                       const Config& config) {
  const checkpoint::Strictness strictness = config.checkpoint.strictness;
  std::vector<std::string> fresh = source.check(models::param_specs(config.model), strictness);
  source.check_layers(models::tensor_specs(config.model), strictness);
  const auto has_own = [](const models::ModelConfig& model) {
    return model.untie_embeddings_and_output_weights && models::has_output_layer(model);
  };
  if (strictness == checkpoint::Strictness::kRaiseAll && has_own(source.config()) &&
      !has_own(config.model) && models::has_output_layer(config.model))
    raise<CheckpointError>(
        "{} contains an output layer that differs from the embedding, but "
        "model.untie_embeddings_and_output_weights=false\n  try: "
        "model.untie_embeddings_and_output_weights=true, or checkpoint.strictness=log_unexpected "
        "to leave it out",
        source.facts().path.string());
  return fresh;
}

void load_weights(const std::string& where, const parallelize::TrainingModel& model,
                  const Config& config, const comm::Group& world, checkpoint::AdapterBase* base) {
  const comm::LongWork work(world, "reading " + where);
  const auto source = checkpoint::open_model(where);
  source->on_progress([&] { work.progress(); });
  if (base != nullptr && !base->digest.empty())
    checkpoint::check_base(*source, *base,
                           loads_own(config.checkpoint) ? config.checkpoint.save
                                                        : config.checkpoint.load);
  const std::vector<std::string> fresh = check_tensors(*source, config);
  if (where == foreign_model(config.checkpoint)) tell_other_model(source->config(), config, where);
  if (!fresh.empty())
    log::shared_warning("{} has no {} of this model: training starts with new values", where,
                        fmt::join(fresh, ", "));
  const auto write = [&](const std::function<void(nn::Param&)>& fill) {
    model.store->write_values(fill);
  };
  source->load(model.model->params(), write, config.checkpoint.strictness);
  if (base != nullptr) *base = checkpoint::adapter_base(where, *source);
}

checkpoint::AdapterBase stored_base(const std::string& folder) {
  const auto stored = checkpoint::read_manifest(folder).attachments;
  const auto entry = stored.find(checkpoint::kAdapterBase);
  if (entry == stored.end())
    raise<ConfigError>("{} contains a whole model and no adapters\n  try: "
                       "checkpoint.finetune=true to train adapters for it",
                       folder);
  return checkpoint::adapter_base_from_json(
      checkpoint::read_attachment(folder, checkpoint::kAdapterBase, entry->second), folder);
}

std::string readable_base(const std::string& given, const checkpoint::AdapterBase& stored,
                          const std::string& folder) {
  if (!given.empty()) {
    naming("peft.base=", given, [&] { checkpoint::open_model(given); });
    return given;
  }
  if (stored.model.empty()) return "";
  const std::string place = checkpoint::place_of(stored);
  try {
    checkpoint::open_model(place);
  } catch (const OutOfDescriptors&) {
    throw;
  } catch (const Error& error) {
    raise<CheckpointError>("{} contains adapters for {}, which cannot be read: {}\n  try: "
                           "peft.base=DIR with that model",
                           folder, stored.model, parts_of(error.what()).sentence);
  }
  return place;
}

namespace {

/// `where`: the model to read, which may have moved from where `base` says.
void load_values(const std::string& where, checkpoint::AdapterBase& base,
                 const parallelize::TrainingModel& model, const Config& config,
                 const comm::Group& world) {
  if (where.empty())
    model.store->write_values([&](nn::Param& param) { param.initialize(config.seed); });
  else
    load_weights(where, model, config, world, &base);
}

} // namespace

checkpoint::AdapterBase load_base(const Config& config,
                                  const std::optional<checkpoint::FoundCheckpoint>& found,
                                  const parallelize::TrainingModel& model,
                                  const comm::Group& world) {
  checkpoint::AdapterBase base;
  std::string where = foreign_model(config.checkpoint).value_or("");
  if (found && config.checkpoint.finetune) where = found->folder.string();
  if (found && !config.checkpoint.finetune) {
    const std::string folder = found->folder.string();
    checkpoint::read_together(world, [&] { base = stored_base(folder); });
    where = readable_base(config.peft.base, base, folder);
  }
  load_values(where, base, model, config, world);
  return base;
}

void load_base(const checkpoint::AdapterBase& base, const parallelize::TrainingModel& model,
               const Config& config, const comm::Group& world) {
  checkpoint::AdapterBase same = base;
  load_values(checkpoint::place_of(same), same, model, config, world);
}

} // namespace pentatron::trainer
