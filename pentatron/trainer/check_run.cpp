#include "pentatron/trainer/check_run.h"

#include <filesystem>
#include <memory>

#include "pentatron/base/error.h"
#include "pentatron/base/log.h"
#include "pentatron/checkpoint/adapters/adapter_source.h"
#include "pentatron/checkpoint/meant_checkpoints.h"
#include "pentatron/checkpoint/model_source.h"
#include "pentatron/checkpoint/run_checkpoint.h"
#include "pentatron/checkpoint/sharded/folders.h"
#include "pentatron/data/data_files.h"
#include "pentatron/models/param_specs.h"
#include "pentatron/trainer/adapters.h"
#include "pentatron/trainer/described_run.h"
#include "pentatron/trainer/differences.h"
#include "pentatron/trainer/input_log.h"
#include "pentatron/trainer/notices.h"
#include "pentatron/trainer/resume.h"
#include "pentatron/trainer/run_data.h"
#include "pentatron/trainer/run_folders.h"
#include "pentatron/trainer/run_samples.h"
#include "pentatron/trainer/run_tasks.h"
#include "pentatron/trainer/starting_weights.h"
#include "pentatron/trainer/stored_tokenizer.h"

namespace pentatron::trainer {

namespace {

/// The tensors of an adapter that a run starts from; `base`: the model.
void check_adapter(const Config& config, const std::string& base) {
  if (config.peft.on() && !config.peft.load.empty()) loaded_adapter(config, base);
}

/// ", FOLDER" of the checkpoint, as far as it can be opened here.
std::string check_checkpoint(const Config& config, const data::Datasets& datasets) {
  const CheckpointConfig& c = config.checkpoint;
  if (c.load.empty()) {
    check_adapter(config, "");
    return "";
  }
  if (const std::optional<std::string> foreign = foreign_model(c)) {
    const auto source = checkpoint::open_model(*foreign);
    check_tensors(*source, config);
    tell_other_model(source->config(), config, *foreign);
    check_adapter(config, *foreign);
    return ", " + c.load;
  }
  if (c.node_local) return "";
  const auto found = checkpoint::newest_checkpoint(loads_own(c) ? c.save : c.load,
                                                   {.scope = checkpoint::VerifyScope::kStructure,
                                                    .damaged = {},
                                                    .progress = {},
                                                    .key = "checkpoint.load="});
  report_found(c, found);
  if (!found) return "";
  const std::string folder = found->folder.string();
  const checkpoint::SavedRun run = checkpoint::saved_run(found->folder);
  std::unique_ptr<checkpoint::ModelSource> merged; // of adapters that become weights
  if (c.finetune && checkpoint::holds_adapters(found->folder))
    merged = checkpoint::open_model(folder);
  Config saved = config;
  if (!run.config_yaml.empty()) {
    saved = stored_config(run.config_yaml);
    if (merged) saved.model = merged->config();
    check_saved(saved, config, run.has_training_state, folder);
  }
  if (merged)
    check_tensors(*merged, config);
  else
    checkpoint::check_parameters(found->folder,
                                 config.peft.on() && !c.finetune
                                     ? adapter_specs(config)
                                     : models::tensor_specs(config.model),
                                 c.strictness);
  if (config.peft.on())
    check_adapter(
        config, c.finetune ? folder : readable_base(config.peft.base, stored_base(folder), folder));
  const std::string digest = stored_tokenizer(config.tokenizer).digest;
  check_digest(c, folder, run.tokenizer, digest);
  if (!c.finetune && run.has_training_state) {
    if (run.tokenizer == digest) saved.tokenizer = config.tokenizer;
    const std::string files = data::to_json(data::describe_files(datasets.files));
    for (const std::string& text : data_changes(saved, config, folder, files))
      log::warning("{}", text);
  }
  const int64_t iteration = checkpoint::iteration_of(found->folder.filename()).value_or(0);
  std::error_code error;
  if (!c.finetune && run.has_training_state && !c.save.empty() &&
      std::filesystem::equivalent(found->folder.parent_path(), c.save, error))
    for (const checkpoint::CheckpointFolder& later : checkpoint::checkpoints_in(c.save))
      if (later.iteration > iteration) {
        log::info(
            "the run goes back to iteration {}: it will move its later checkpoints, such as {}, "
            "into a folder earlier-N",
            iteration, later.path.filename().string());
        break;
      }
  return fmt::format(", {} (not its checksums)", folder);
}

} // namespace

void report_found(const CheckpointConfig& config,
                  const std::optional<checkpoint::FoundCheckpoint>& found, bool moves) {
  const std::string& from = loads_own(config) ? config.save : config.load;
  if (!found && loads_own(config)) {
    log::info("{} contains no checkpoint: starting a new run", from);
  } else if (!found) {
    raise<CheckpointError>(
        "checkpoint.load={} {}\n  try: {}", from, checkpoint::lack_of_checkpoints(from),
        checkpoint::meant_checkpoints(
            from, "checkpoint.load=",
            config.finetune ? "remove checkpoint.load and checkpoint.finetune to start a new run"
                            : "remove checkpoint.load to start a new run"));
  } else if (!found->passed_over.empty()) {
    checkpoint::FoundCheckpoint told = *found;
    if (moves) told.passed_over = std::string(parts_of(found->passed_over).sentence);
    log::shared_warning("{}", checkpoint::passed_over_text(told));
  }
}

void check_run(const Config& config, int world_size) {
  check_folders(config);
  const RunData data = open_run_data(config);
  log_input(config, data.datasets, *data.tokenizer, data.samples);
  for (const std::string& notice : notices(config, world_size, data.datasets.validation != nullptr))
    log::warning("{}", notice);
  const std::string checkpoint = check_checkpoint(config, data.datasets);
  const RunTasks tasks(config);
  if (!config.logger.sample_prompts.empty()) const RunSamples samples(config, *data.tokenizer);
  if (config.offload.activations || config.offload.optimizer)
    require_writable("offload.dir", config.offload.dir);
  log::info("checked the configuration, the memory, the folders, the data, the tokenizer{}{}; "
            "nothing was written{}",
            config.eval.tasks.empty() ? "" : ", the tasks", checkpoint,
            config.checkpoint.node_local && !config.checkpoint.load.empty()
                ? "; checkpoint.load was not checked, because each machine has a part of it"
                : "");
}

} // namespace pentatron::trainer
