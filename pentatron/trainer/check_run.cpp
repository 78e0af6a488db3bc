#include "pentatron/trainer/check_run.h"

#include "pentatron/base/error.h"
#include "pentatron/base/log.h"
#include "pentatron/checkpoint/meant_checkpoints.h"
#include "pentatron/checkpoint/model_source.h"
#include "pentatron/checkpoint/run_checkpoint.h"
#include "pentatron/trainer/differences.h"
#include "pentatron/trainer/input_log.h"
#include "pentatron/trainer/run_data.h"
#include "pentatron/trainer/run_folders.h"

namespace pentatron::trainer {

namespace {

/// "the checkpoint FOLDER", as far as it can be opened here.
std::string check_checkpoint(const Config& config) {
  const CheckpointConfig& c = config.checkpoint;
  if (c.load.empty()) return "";
  if (const std::optional<std::string> foreign = foreign_model(c)) {
    checkpoint::open_model(*foreign);
    return ", " + c.load;
  }
  if (c.node_local) return "";
  const auto found = checkpoint::newest_checkpoint(loads_own(c) ? c.save : c.load,
                                                   checkpoint::VerifyScope::kStructure);
  report_found(c, found);
  if (!found) return "";
  const checkpoint::SavedRun run = checkpoint::saved_run(found->folder);
  if (!run.config_yaml.empty()) {
    Config saved;
    config::Violations ignored; // of an older program
    config::apply_yaml(saved, run.config_yaml, "", ignored);
    check_saved(saved, config, run.has_training_state, found->folder.string());
  }
  return ", " + found->folder.string();
}

} // namespace

void report_found(const CheckpointConfig& config,
                  const std::optional<checkpoint::FoundCheckpoint>& found) {
  const std::string& from = loads_own(config) ? config.save : config.load;
  if (!found && loads_own(config)) {
    log::info("{} contains no checkpoint: starting a new run", from);
  } else if (!found) {
    raise<CheckpointError>(
        "checkpoint.load={} contains no checkpoint\n  try: {}", from,
        checkpoint::meant_checkpoints(
            from, "checkpoint.load=", "remove checkpoint.load to start a new run"));
  } else if (!found->passed_over.empty()) {
    log::shared_warning("{}", checkpoint::passed_over_text(*found));
  }
}

void check_run(const Config& config) {
  check_folders(config);
  Config reading = config;
  reading.dataset.data_cache_path.clear(); // where an index would be written
  const RunData data = open_run_data(reading);
  log_input(config, data.datasets, *data.tokenizer, data.samples);
  const std::string checkpoint = check_checkpoint(config);
  log::info("checked the configuration, the memory, the folders, the data, the tokenizer{}; "
            "nothing was written{}",
            checkpoint,
            config.checkpoint.node_local && !config.checkpoint.load.empty()
                ? "; checkpoint.load was not checked, because each machine has a part of it"
                : "");
}

} // namespace pentatron::trainer
