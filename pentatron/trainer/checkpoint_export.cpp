#include "pentatron/trainer/checkpoint_export.h"

#include <utility>
#include <vector>

#include <ATen/Parallel.h>
#include <omp.h>

#include "pentatron/base/error.h"
#include "pentatron/base/log.h"
#include "pentatron/base/own_files.h"
#include "pentatron/checkpoint/adapters/adapter_source.h"
#include "pentatron/checkpoint/convert.h"
#include "pentatron/checkpoint/model_source.h"
#include "pentatron/checkpoint/sharded/folders.h"
#include "pentatron/checkpoint/source_facts.h"
#include "pentatron/trainer/model_tokenizer.h"

namespace pentatron::trainer {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kAside = ".tmp-";

/// Exports of checkpoints that were pruned, and what a killed process was writing. Files that no
/// export has stay.
void remove_abandoned_exports(const fs::path& exports) {
  std::error_code error;
  std::vector<fs::path> gone;
  for (const auto& entry : fs::directory_iterator(exports, error)) {
    const std::string name = entry.path().filename().string();
    const std::string step = name.substr(0, name.find(kAside));
    const bool ours = checkpoint::iteration_of(step).has_value() && !entry.is_symlink(error) &&
                      entry.is_directory(error);
    if (ours && (step != name || !checkpoint::holds_checkpoint(exports.parent_path() / name)))
      gone.push_back(entry.path());
  }
  for (const fs::path& path : gone) {
    if (path.filename().string().find(kAside) != std::string::npos)
      fs::remove_all(path, error);
    else
      remove_own_files(path, checkpoint::is_exported_name);
  }
}

/// The chat template of adapters whose model has none.
std::map<std::string, std::string> template_of(const fs::path& checkpoint) {
  try {
    auto files = made_tokenizer_files(checkpoint::open_model(checkpoint.string())->facts());
    std::erase_if(files,
                  [](const auto& file) { return file.first != checkpoint::kChatTemplateFile; });
    return files;
  } catch (const Error&) { // adapters of weights that were not saved, or whose model is gone
    return {};
  }
}

} // namespace

fs::path export_checkpoint(const fs::path& checkpoint, bool average,
                           const std::function<void()>& progress) {
  const fs::path exports = checkpoint.parent_path() / kExportFolder;
  const fs::path target = exports / checkpoint.filename();
  remove_abandoned_exports(exports);
  if (checkpoint::holds_adapters(checkpoint)) {
    const fs::path adapter = checkpoint.parent_path() / kAdapterFolder;
    checkpoint::write_peft_of(checkpoint, adapter, template_of(checkpoint), progress);
    return adapter;
  }
  const auto source = checkpoint::open_model(average ? checkpoint::averaged(checkpoint.string())
                                                     : checkpoint.string());
  checkpoint::convert_model(*source, target,
                            {.format = checkpoint::ModelFormat::kHuggingFace,
                             .overwrite = true,
                             .files = made_tokenizer_files(source->facts()),
                             .progress = [&](uint64_t, uint64_t) {
                               if (progress) progress();
                             }});
  return target;
}

CheckpointExporter::CheckpointExporter(bool average, bool in_background, comm::Group world)
    : average_(average), world_(std::move(world)), progress_(world_),
      thread_(in_background ? std::make_unique<IoThreads>() : nullptr) {}

void CheckpointExporter::begin(const fs::path& checkpoint, int64_t iteration) {
  if (!thread_) {
    const comm::LongWork work(world_, "the export of " + checkpoint.string());
    return run(checkpoint, iteration);
  }
  wait();
  thread_->submit([this, checkpoint, iteration] {
    at::get_num_threads();  // takes over what the program is set to, in this thread ...
    omp_set_num_threads(1); // ... of which it shall not take any from the step
    run(checkpoint, iteration);
  });
}

void CheckpointExporter::wait() noexcept {
  if (!thread_) return;
  const comm::LongWork work(world_, "the export of a checkpoint");
  thread_->finish(); // run() does not throw
}

std::optional<CheckpointExporter::Failure> CheckpointExporter::take_failure() {
  const std::lock_guard lock(mutex_);
  return std::exchange(failure_, std::nullopt);
}

void CheckpointExporter::run(const fs::path& checkpoint, int64_t iteration) {
  try {
    log::info("exported {}", export_checkpoint(checkpoint, average_, progress_).string());
  } catch (const std::exception& error) {
    const std::lock_guard lock(mutex_);
    failure_ = {.iteration = iteration, .why = error.what()};
  }
}

} // namespace pentatron::trainer
