/// Which run a folder belongs to: no run writes over what another one left, and no two write into
/// one folder at the same time.
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
  /// Makes the folders. A run without steps writes nothing and takes none. Where a first attempt
  /// with checkpoint.load=auto was ended before its first checkpoint, what that wrote is moved into
  /// logger.dir/earlier-N.
  ///
  /// Throws ConfigError, on all ranks alike, if another live run is in one of them, if a run that
  /// is not resumed has left metrics or checkpoints there, or if nothing can be written; CommError
  /// if the ranks' configurations differ. Collective.
  explicit RunFolders(const Config& config, const comm::Group& world);

 private:
  std::vector<RunLock> locks_;
};

} // namespace pentatron::trainer
