/// A checkpoint from its beginning to the moment when it is there: what the first rank does.
///
///   rank 0     CheckpointWriter writer(dir, iteration);       then tells all ranks writer.path()
///   each rank  ShardFileWriter in that folder, finish();      then sends the description to rank 0
///   rank 0     writer.commit(descriptions, info)
///
/// A process killed at any moment, or a machine that loses what was not synced, leaves the earlier
/// checkpoints and `latest` as they were, or the new one whole; and at most a folder aside, which
/// the next save removes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "pentatron/base/atomic_file.h"
#include "pentatron/base/json.h"
#include "pentatron/checkpoint/sharded/folders.h"

namespace pentatron::checkpoint {

struct CheckpointInfo {
  Json state = Json::object(); ///< whatever the caller wants back
  std::string config_yaml;
  std::string tokenizer; ///< digest
  /// Small files by their name in the folder, see attachments.h.
  std::map<std::string, std::string> attachments;
  int64_t parity = 0; ///< parity files to add, see parity.h
  /// What write_parity_part() returned to each rank; empty: commit() writes the parity files.
  std::vector<std::string> parity_parts;
  /// The files that lie in this folder, where the others are on other machines; empty: all.
  std::set<std::string> files_here;
};

class CheckpointWriter {
 public:
  /// Locks DIR, removes what earlier processes left, makes the folder aside. Throws CheckpointError
  /// or Error, naming the path.
  /// `progress` is called for each file that is removed or synced.
  CheckpointWriter(const std::filesystem::path& dir, int64_t iteration,
                   const std::function<void()>& progress = {});

  /// Where all ranks write.
  const std::filesystem::path& path() const { return folder_.path(); }
  /// Writes the manifest from the ranks' descriptions, makes everything durable, renames and
  /// updates `latest`. Replaces a checkpoint of that iteration. Returns the folder. Throws
  /// CheckpointError if a tensor is not stored exactly once or a file is not as described.
  std::filesystem::path commit(std::span<const std::string> descriptions,
                               const CheckpointInfo& info);

 private:
  std::filesystem::path dir_;
  int64_t iteration_ = 0;
  DirectoryLock lock_;
  AtomicDirectory folder_;
};

} // namespace pentatron::checkpoint
