/// Settings with which a run takes less memory: what memory_remedy() tries.
#pragma once

#include <string>
#include <vector>

#include "pentatron/trainer/config.h"

namespace pentatron::trainer {

/// Settings that belong together, as "key=value".
using MemoryChange = std::vector<std::string>;

/// A folder for offload.dir.
struct OffloadFolder {
  std::string path;      ///< empty: there is none
  double free_bytes = 0; ///< of its disk
};

/// offload.dir if it is set, else /var/tmp unless that is in memory.
OffloadFolder offload_folder(const Config& config);

/// Combinations of settings with which the training has the same results: recomputation, ZeRO,
/// offload, remainders in place of master weights. Those with the fewest settings first, and of
/// these the cheapest first. `replicas`: ranks that hold the same parameters. `group`: the
/// leanest_group(), which is no setting of its own.
std::vector<MemoryChange> changes_of_memory_alone(const Config& config, int64_t replicas,
                                                  int64_t group, const OffloadFolder& folder);

/// Settings with which the optimizer keeps less, and the training is another one: narrow running
/// means, then other optimizers.
std::vector<MemoryChange> leaner_optimizers(const Config& config);

/// The configuration with the settings. Throws ConfigError for keys that are not there.
Config with_change(Config config, const MemoryChange& change);

} // namespace pentatron::trainer
