/// The folders of a run as folders: names, which one is the newest good one, which ones may go.
///
///   DIR/step_00000100/   a checkpoint
///   DIR/latest           the name of the newest
///   DIR/lock             held while something writes or removes here
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "pentatron/checkpoint/sharded/verify.h"

namespace pentatron::checkpoint {

inline constexpr const char* kLatestName = "latest";

/// "step_00000100"
std::string step_name(int64_t iteration);
/// The iteration of such a name; none for anything else.
std::optional<int64_t> iteration_of(const std::string& name);

struct CheckpointFolder {
  int64_t iteration = 0;
  std::filesystem::path path;
};
/// Every folder in DIR that has a checkpoint's name, newest first.
std::vector<CheckpointFolder> checkpoints_in(const std::filesystem::path& dir);
/// Those of them in which a checkpoint is, intact or not: a removed one leaves files of the user.
std::vector<CheckpointFolder> saved_in(const std::filesystem::path& dir);
/// Whether a file of a checkpoint, intact or not, is in the folder; or it cannot be read.
bool holds_checkpoint(const std::filesystem::path& folder);
/// The folder that `latest` names, there or not; none without a `latest` that names one.
std::optional<std::string> latest_name(const std::filesystem::path& dir);

/// Makes the folder and those above it that do not exist; each is durable before it is used. Throws
/// CheckpointError.
void create_durably(const std::filesystem::path& dir);

/// Creates DIR (durably) and holds its lock. Throws CheckpointError if another process, or another
/// part of this one, holds it, naming process and host.
class DirectoryLock {
 public:
  explicit DirectoryLock(const std::filesystem::path& dir);
  ~DirectoryLock();
  DirectoryLock(const DirectoryLock&) = delete;
  DirectoryLock& operator=(const DirectoryLock&) = delete;
  /// False on a file system without locks, where other writers cannot be detected.
  bool held() const { return held_; }

 private:
  int descriptor_ = -1;
  bool held_ = false;
};

/// Removes what killed processes were writing or removing: `<checkpoint>.tmp-*`, `latest.tmp-*`,
/// and the files of a checkpoint whose removal had begun.
/// Nothing if the lock is not held.
void remove_abandoned(const std::filesystem::path& dir, const DirectoryLock& lock,
                      const std::function<void()>& progress = {});

struct FoundCheckpoint {
  std::filesystem::path folder;
  std::string passed_over; ///< what was damaged and why, and what to try; empty: nothing
};
/// Returns a warning about the skipped checkpoints: "...; using FOLDER instead".
std::string passed_over_text(const FoundCheckpoint& found);
/// Folders that somebody has found damaged, and how.
using KnownDamage = std::map<std::filesystem::path, std::string>;
struct SearchOptions {
  VerifyScope scope = VerifyScope::kWhole; ///< what of a checkpoint is looked at
  KnownDamage damaged = {};                ///< skipped without checking
  /// Of these, what a repair can mend; none: found out here, by reading all of them.
  std::optional<std::set<std::filesystem::path>> repairable = {};
  std::function<void()> progress = {}; ///< called again and again, by any thread
  std::string key = {}; ///< stands before a folder to use instead: "checkpoint.load="
};
/// What to do about a corrupted checkpoint, for a `try:` line: repair it if that can succeed, else
/// use the nearest earlier checkpoint beside it that is intact, or the nearest later one. Reads
/// all of these, or with a scope of weights all their weights. Empty: there is none.
std::string remedy_for(const VerifyReport& report, const std::filesystem::path& folder,
                       const SearchOptions& options = {});
/// The checkpoint to resume from: the folder that `latest` names if every byte of it is as written,
/// else the nearest earlier one of which that holds; without `latest` the newest of all. `dir` may
/// be a checkpoint itself. None if nothing was saved there; CheckpointError if all is damaged.
std::optional<FoundCheckpoint> newest_checkpoint(const std::filesystem::path& dir,
                                                 const SearchOptions& options);
std::optional<FoundCheckpoint> newest_checkpoint(const std::filesystem::path& dir,
                                                 VerifyScope scope = VerifyScope::kWhole);

/// Which checkpoints stay; each rule adds to what the others keep.
struct Retention {
  int64_t keep_last = 0;  ///< the newest so many; 0: all
  int64_t keep_every = 0; ///< those whose iteration is a multiple; 0: none for that
  int64_t keep_best = 0;  ///< so many with the best `metric`
  std::string metric;     ///< a number in the manifest's state
  bool lower_is_better = true;
  bool node_local = false; ///< files that are not there are on other machines
};
struct PruneReport {
  std::vector<std::string> removed, kept;
  std::vector<std::string> damaged; ///< left alone and not counted, with the reason
  std::vector<std::string> foreign; ///< files in `removed` that no checkpoint has, which stay
};
/// Removes the other checkpoints up to the one that `latest` names, which always stays; later ones
/// belong to another run and stay too, as does every other folder. `only_report` removes nothing.
/// `progress` is called for every file that goes.
PruneReport prune_checkpoints(const std::filesystem::path& dir, const Retention& retention,
                              bool only_report = false, const std::function<void()>& progress = {});

} // namespace pentatron::checkpoint
