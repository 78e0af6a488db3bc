/// An offline run of Weights & Biases, which `wandb sync` uploads later: a log of protobuf records.
/// Nothing is sent, and wandb is not needed.
/// Source: wandb/sdk/internal/datastore.py, wandb/proto/wandb_internal.proto.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>

#include "pentatron/trainer/metrics/tracked.h"

namespace pentatron::trainer {

/// FOLDER/wandb/offline-run-DATE_TIME-ID/run-ID.wandb. A resumed run has another such folder with
/// the same id: `wandb sync --append` joins them. One thread at a time; all functions throw
/// DataError if the file cannot be written, which then may end in the middle of a record.
class WandbWriter {
 public:
  WandbWriter(const std::filesystem::path& folder, const TrackedRun& run);
  ~WandbWriter();
  WandbWriter(const WandbWriter&) = delete;
  WandbWriter& operator=(const WandbWriter&) = delete;

  /// Values of one step; several calls for a step are several rows.
  void log(int64_t step, const TrackedValues& values);
  /// Writes the last values as the summary, and how the run ended (0: well).
  void finish(int exit_code);
  void flush();

  const std::filesystem::path& path() const { return path_; }

 private:
  void record(uint32_t kind, std::string_view message);
  void fragment(uint8_t type, std::string_view data);
  void raw(std::string_view data);

  std::filesystem::path path_;
  std::FILE* file_ = nullptr;
  uint64_t size_ = 0;
  int64_t records_ = 0;
  std::chrono::system_clock::time_point begin_ = std::chrono::system_clock::now();
  std::map<std::string, std::string> last_; ///< name -> JSON
};

} // namespace pentatron::trainer
