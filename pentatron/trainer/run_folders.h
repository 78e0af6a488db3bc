/// The run that a folder belongs to: no run overwrites the files of another run, and no two runs
/// write to one folder at the same time.
#pragma once

#include <filesystem>
#include <vector>

#include "pentatron/base/run_lock.h"
#include "pentatron/comm/group.h"
#include "pentatron/trainer/config.h"

namespace pentatron::trainer {

/// logger.dir and checkpoint.save as the folders of one run, from before anything is written until
/// its end. Rank 0 holds the lock of each (with checkpoint.node_local every rank that is the first
/// of its machine).
class RunFolders {
 public:
  /// Makes the folders, and removes them again if the run ends before begin(). A run without steps
  /// writes nothing and takes none. What an earlier start
  /// left that made no step, or with checkpoint.load=auto no checkpoint, is moved into
  /// logger.dir/earlier-N.
  ///
  /// Throws ConfigError, on all ranks alike, if another live run is in one of them, if a run that
  /// is not resumed has left metrics or checkpoints there, if a file of the user has the name of
  /// one that a run writes, or if nothing can be written; CommError if the ranks' configurations
  /// differ. Collective.
  explicit RunFolders(const Config& config, const comm::Group& world);

  /// Before the first step: moves checkpoints later than `iteration`, from which the run continues,
  /// to earlier-N in checkpoint.save. If there are such checkpoints, or metrics.jsonl has later
  /// lines, which the run will remove, also copies the run's files to earlier-N in logger.dir. No
  /// data is lost if the process is killed during this. `repair`: a command that may repair one of
  /// these checkpoints, shown with its new path. Collective.
  void begin(int64_t iteration, const comm::Group& world, const std::string& repair = "");

 private:
  /// What was made for a run that may never begin.
  struct Taken {
    std::vector<RunLock> locks;
    std::vector<std::filesystem::path> made; ///< folders, the outer ones first
    bool kept = false;
    ~Taken();
  };

  Config config_;
  Taken taken_;
};

/// Throws ConfigError if nothing can be written in `folder`, the value of `key`, or, if it does not
/// exist, in the one above it.
void require_writable(const std::string& key, const std::filesystem::path& folder);

/// Throws what RunFolders throws for these folders, and makes none. Of checkpoint.save it sees only
/// what this machine does.
void check_folders(const Config& config);

} // namespace pentatron::trainer
