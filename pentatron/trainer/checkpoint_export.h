/// Exports the checkpoints of a run: as Hugging Face models, or their adapters in the files of
/// PEFT.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "pentatron/base/io_thread.h"
#include "pentatron/comm/long_work.h"

namespace pentatron::trainer {

inline constexpr const char *kExportFolder = "hf", *kAdapterFolder = "adapter";

/// Writes checkpoint.save/hf/step_NNNNNNNN for a checkpoint in checkpoint.save, a block of a tensor
/// at a time, whole or not at all, and removes the exports whose checkpoint is gone. The latest
/// adapters become checkpoint.save/adapter, in the files of PEFT. `average`: of the running mean of
/// the weights. Returns the folder. `progress` is called again and again. Throws Error.
std::filesystem::path export_checkpoint(const std::filesystem::path& checkpoint,
                                        bool average = false,
                                        const std::function<void()>& progress = {});

/// Exports checkpoints as they become durable: immediately, or in a background thread.
class CheckpointExporter {
 public:
  struct Failure {
    int64_t iteration = 0;
    std::string why;
  };
  /// The other ranks of `world` may wait for this one meanwhile.
  CheckpointExporter(bool average, bool in_background, comm::Group world);

  /// Waits for the export before it.
  void begin(const std::filesystem::path& checkpoint, int64_t iteration);
  /// Returns when nothing reads a checkpoint any more.
  void wait() noexcept;
  /// What went wrong since the last call, of an export that is done.
  std::optional<Failure> take_failure();

 private:
  void run(const std::filesystem::path& checkpoint, int64_t iteration);

  bool average_;
  comm::Group world_;
  comm::ProgressTeller progress_;
  std::mutex mutex_;
  std::optional<Failure> failure_;
  std::unique_ptr<IoThreads> thread_; ///< null: at once
};

} // namespace pentatron::trainer
