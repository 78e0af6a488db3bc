/// Checkpoints on local disks of several machines: each machine stores the files of its own ranks
/// and the same manifest, and on loading the machines send missing files to each other.
#pragma once

#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "pentatron/checkpoint/sharded/folders.h"
#include "pentatron/checkpoint/sharded/manifest.h"
#include "pentatron/comm/group.h"

namespace pentatron::checkpoint {

/// Which ranks see the same folder. The lowest rank of those, the leader, writes for them what is
/// there once.
class Machines {
 public:
  /// All ranks see the folders of rank 0.
  explicit Machines(const comm::Group& world);
  /// Collective. Makes `dir` on every machine, and finds out who sees the same one. Throws, the
  /// same on all ranks, if a rank cannot.
  Machines(const std::filesystem::path& dir, const comm::Group& world);

  int leader(int rank) const { return leaders_[static_cast<size_t>(rank)]; }
  int own_leader() const { return leader(rank_); }
  bool leads() const { return own_leader() == rank_; }
  /// Ascending.
  const std::vector<int>& all_leaders() const { return all_; }

 private:
  int rank_ = 0;
  std::vector<int> leaders_; ///< by rank
  std::vector<int> all_;
};

/// What newest_checkpoint() is for one folder that all see. A checkpoint is good if its files are
/// on the machines together, each on one of them as written. Every machine gets its manifest and
/// attachments. `damaged` are skipped. Collective.
std::optional<FoundCheckpoint> find_on_machines(const std::filesystem::path& dir,
                                                const comm::Group& world,
                                                const KnownDamage& damaged = {});

/// Copies the files of `needed`, of any rank, to its machine if they are not there; all are of
/// `manifest`, that of the folder. Collective; one transfer at a time, in blocks.
void fetch_files(const std::filesystem::path& folder, const Manifest& manifest,
                 const std::set<std::string>& needed, const Machines& machines,
                 const comm::Group& world);

} // namespace pentatron::checkpoint
