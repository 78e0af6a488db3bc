#include "pentatron/checkpoint/sharded/folders.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <set>

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/file.h>
#include <unistd.h>

#include "pentatron/base/atomic_file.h"
#include "pentatron/base/descriptors.h"
#include "pentatron/base/error.h"
#include "pentatron/base/host_name.h"
#include "pentatron/base/own_files.h"
#include "pentatron/base/text.h"
#include "pentatron/checkpoint/sharded/manifest.h"
#include "pentatron/checkpoint/sharded/spares.h"
#include "pentatron/checkpoint/sharded/verify.h"

namespace pentatron::checkpoint {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kAside = ".tmp-", kLock = "lock";
constexpr std::string_view kRemoved = "-old"; ///< ends the name of what is being removed

/// Every name in `dir`; nothing if it cannot be read.
std::vector<std::string> names_in(const fs::path& dir) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(dir, error), end; !error && it != end; it.increment(error))
    names.push_back(it->path().filename().string());
  return names;
}

std::string first_line(const fs::path& file) {
  std::error_code error;
  if (!fs::is_regular_file(file, error)) return {};
  const std::string text = read_small_file(file, 4096);
  return std::string(trim(text.substr(0, text.find('\n'))));
}

} // namespace

void create_durably(const fs::path& dir) {
  std::error_code error;
  if (dir.empty() || fs::is_directory(dir, error)) return;
  const fs::path parent = dir.has_parent_path() ? dir.parent_path() : fs::path(".");
  if (!dir.has_filename()) return create_durably(parent); // "folder/"
  create_durably(parent);
  fs::create_directory(dir, error);
  if (error) raise<CheckpointError>("cannot create {}: {}", dir.string(), error.message());
  sync_path(parent);
}

std::string step_name(int64_t iteration) {
  return fmt::format("step_{:08d}", iteration);
}

std::optional<int64_t> iteration_of(const std::string& name) {
  int64_t iteration = -1;
  if (!name.starts_with("step_")) return std::nullopt;
  std::from_chars(name.data() + 5, name.data() + name.size(), iteration);
  if (iteration < 0 || name != step_name(iteration)) return std::nullopt;
  return iteration;
}

std::vector<CheckpointFolder> checkpoints_in(const fs::path& dir) {
  std::vector<CheckpointFolder> found;
  std::error_code error;
  for (const std::string& name : names_in(dir)) {
    if (const auto iteration = iteration_of(name); iteration && fs::is_directory(dir / name, error))
      found.push_back({.iteration = *iteration, .path = dir / name});
  }
  // The newest first; of one iteration, which several names may have, always in one order.
  std::ranges::sort(found, std::greater(), [](const CheckpointFolder& f) {
    return std::pair(f.iteration, f.path.filename().string());
  });
  return found;
}

std::vector<CheckpointFolder> saved_in(const fs::path& dir) {
  std::vector<CheckpointFolder> found = checkpoints_in(dir);
  std::erase_if(found, [](const CheckpointFolder& f) {
    return !holds_checkpoint(f.path) && !has_spare_manifest(f.path);
  });
  return found;
}

bool holds_checkpoint(const fs::path& folder) {
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (name == kManifestName || is_shard_name(name) || is_parity_name(name)) return true;
  }
  return error && error != std::errc::no_such_file_or_directory;
}

std::optional<std::string> latest_name(const fs::path& dir) {
  try {
    const std::string name = first_line(dir / kLatestName);
    return iteration_of(name) ? std::optional(name) : std::nullopt;
  } catch (const CheckpointError&) {
    return std::nullopt;
  }
}

DirectoryLock::DirectoryLock(const fs::path& dir) {
  create_durably(dir);
  const fs::path file = dir / kLock;
  descriptor_ = ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (descriptor_ < 0) require_descriptors(errno, file.native());
  if (descriptor_ < 0)
    raise<CheckpointError>("cannot open {}: {}", file.string(), std::strerror(errno));
  if (::flock(descriptor_, LOCK_EX | LOCK_NB) == 0) {
    held_ = true;
    const std::string text = fmt::format("process {} on {}\n", ::getpid(), host_name());
    // Only for messages: a lock whose owner is unknown is a lock.
    if (::ftruncate(descriptor_, 0) != 0 || ::pwrite(descriptor_, text.data(), text.size(), 0) < 0)
      return;
  } else if (errno == EWOULDBLOCK) {
    ::close(descriptor_);
    std::string owner;
    try {
      owner = first_line(file);
    } catch (const CheckpointError&) { // being written
    }
    raise<CheckpointError>(
        "{} is in use by {}\n  try: another checkpoint.save, or wait until it ends", dir.string(),
        owner.empty() ? "another process" : excerpt(owner));
  }
}

DirectoryLock::~DirectoryLock() {
  ::close(descriptor_);
}

namespace {

bool of_weights(const SearchOptions& options) {
  return options.scope == VerifyScope::kWeights || options.scope == VerifyScope::kWeightsStructure;
}

/// Whether a repair can succeed of what somebody has found damaged. Reads all of it.
bool is_repairable(const fs::path& folder, const SearchOptions& options) {
  const VerifyReport report = verify(folder, VerifyScope::kWhole, options.progress);
  return report.repairable && !report.ok(); // else a repair changes nothing
}

/// Of known damage in weights, whether it can be repaired is not looked at: most callers go on with
/// another checkpoint.
VerifyReport look_at(const fs::path& folder, const SearchOptions& options) {
  const auto known = options.damaged.find(folder);
  if (known == options.damaged.end()) return verify(folder, options.scope, options.progress);
  VerifyReport report;
  report.repairable = options.repairable ? options.repairable->contains(folder)
                                         : !of_weights(options) && is_repairable(folder, options);
  report.faults = {known->second};
  return report;
}

/// Empty if a repair cannot succeed.
std::string repair_command(const VerifyReport& report, const fs::path& folder) {
  return report.repairable
             ? fmt::format("pentatron checkpoint repair {}", shell_word(folder.string()))
             : "";
}

} // namespace

std::string remedy_for(const VerifyReport& report, const fs::path& folder,
                       const SearchOptions& options) {
  if (report.repairable) return repair_command(report, folder);
  const fs::path place = folder.has_filename() ? folder : folder.parent_path(); // "DIR/"
  const auto own = iteration_of(place.filename().string());
  if (!own) return "";
  std::vector<CheckpointFolder> others =
      saved_in(place.has_parent_path() ? place.parent_path() : fs::path("."));
  std::erase_if(others, [&](const CheckpointFolder& f) {
    return f.iteration == *own || options.damaged.contains(f.path);
  });
  std::ranges::stable_sort(others, {}, [&](const CheckpointFolder& f) { // newest first
    return f.iteration < *own ? 0 : f.iteration;
  });
  for (const CheckpointFolder& other : others)
    if (verify(other.path, of_weights(options) ? VerifyScope::kWeights : VerifyScope::kWhole,
               options.progress)
            .ok())
      return fmt::format("{}{}, which is intact", options.key, shell_word(other.path.string()));
  return "";
}

std::optional<FoundCheckpoint> newest_checkpoint(const fs::path& dir, VerifyScope scope) {
  return newest_checkpoint(dir, SearchOptions{.scope = scope});
}

std::optional<FoundCheckpoint> newest_checkpoint(const fs::path& dir,
                                                 const SearchOptions& options) {
  std::error_code error;
  if (fs::exists(dir / kManifestName, error)) {
    VerifyReport report = look_at(dir, options);
    if (!report.ok()) {
      if (of_weights(options) && options.damaged.contains(dir))
        report.repairable = is_repairable(dir, options);
      const std::string remedy = remedy_for(report, dir, options);
      raise<CheckpointError>("{} is corrupted: {}{}{}", dir.string(),
                             fmt::join(report.faults, "; "),
                             remedy.empty() ? "" : "\n  try: ", remedy);
    }
    return FoundCheckpoint{.folder = dir, .passed_over = {}};
  }
  std::vector<CheckpointFolder> candidates = saved_in(dir);
  if (const auto latest = latest_name(dir)) {
    const int64_t iteration = *iteration_of(*latest);
    std::erase_if(candidates, [&](const CheckpointFolder& f) { return f.iteration >= iteration; });
    candidates.insert(candidates.begin(), {.iteration = iteration, .path = dir / *latest});
  }
  if (candidates.empty()) return std::nullopt;
  std::vector<std::string> damaged;
  std::string remedy; // of the newest that has one
  for (const CheckpointFolder& candidate : candidates) {
    const VerifyReport report = look_at(candidate.path, options);
    if (report.ok())
      return FoundCheckpoint{.folder = candidate.path,
                             .passed_over = fmt::format("{}{}{}", fmt::join(damaged, "; "),
                                                        remedy.empty() ? "" : "\n  try: ", remedy)};
    damaged.push_back(fmt::format("{}: {}", candidate.path.filename().string(), report.faults[0]));
    if (remedy.empty()) remedy = repair_command(report, candidate.path);
  }
  for (const CheckpointFolder& candidate : candidates)
    if (remedy.empty() && of_weights(options) && options.damaged.contains(candidate.path))
      remedy =
          repair_command({.repairable = is_repairable(candidate.path, options)}, candidate.path);
  if (remedy.empty())
    raise<CheckpointError>(
        "{} contains no intact checkpoint: {}\n  try: a copy of one of them in its "
        "place, or another folder with checkpoints",
        dir.string(), fmt::join(damaged, "; "));
  raise<CheckpointError>("{} contains no intact checkpoint: {}\n  try: {}", dir.string(),
                         fmt::join(damaged, "; "), remedy);
}

std::string passed_over_text(const FoundCheckpoint& found) {
  const auto [sentence, remedy] = parts_of(found.passed_over);
  return fmt::format("{}; using {} instead{}{}", sentence, found.folder.string(),
                     remedy.empty() ? "" : "\n  try: ", remedy);
}

namespace {

/// The files of a checkpoint, by its manifest.
struct OwnNames {
  std::set<std::string, std::less<>> names;
  /// Whether a path in the folder is of the checkpoint, of the copies of its small files, or of
  /// what a killed process was writing there.
  bool has(std::string_view path) const {
    path = path.substr(0, path.find(kAside));
    const size_t slash = path.find('/');
    if (is_spare_name(path) && slash != path.npos) path.remove_prefix(slash + 1);
    return names.contains(path);
  }
};

OwnNames own_names(const Manifest& manifest) {
  OwnNames own{{kManifestName}};
  for (const auto& [name, file] : manifest.files) own.names.insert(name);
  for (const auto& [name, parity] : manifest.parity) own.names.insert(name);
  for (const auto& [name, attachment] : manifest.attachments) own.names.insert(name);
  return own;
}

struct Candidate {
  CheckpointFolder folder;
  std::optional<double> metric;
  OwnNames own;
};

/// The metric of a folder whose files all have their size.
Candidate examine(const CheckpointFolder& folder, const Retention& rule) {
  const Manifest manifest = read_manifest(folder.path);
  const auto expect_bytes = [&](const std::string& name, uint64_t bytes) {
    std::error_code error;
    const auto size = fs::file_size(folder.path / name, error);
    if (rule.node_local && error == std::errc::no_such_file_or_directory) return;
    if (error || size != bytes)
      raise<CheckpointError>("{} has {} bytes instead of {}", name, error ? 0 : size, bytes);
  };
  for (const auto& [name, file] : manifest.files) expect_bytes(name, file.bytes);
  for (const auto& [name, parity] : manifest.parity) expect_bytes(name, parity.file.bytes);
  for (const auto& [name, attachment] : manifest.attachments)
    if (!is_optional(name)) expect_bytes(name, attachment.bytes);
  Candidate candidate{.folder = folder, .metric = {}, .own = own_names(manifest)};
  if (const auto it = manifest.state.find(rule.metric);
      it != manifest.state.end() && it->is_number() && it->get<double>() == it->get<double>())
    candidate.metric = it->get<double>();
  return candidate;
}

std::set<std::string> names_to_keep(std::vector<Candidate> candidates, const Retention& rule) {
  std::set<std::string> keep;
  const auto add = [&](const Candidate& c) { keep.insert(c.folder.path.filename().string()); };
  for (size_t i = 0; i < candidates.size(); ++i) { // newest first
    if (rule.keep_last == 0 || i < static_cast<size_t>(rule.keep_last) ||
        (rule.keep_every > 0 && candidates[i].folder.iteration % rule.keep_every == 0))
      add(candidates[i]);
  }
  std::erase_if(candidates, [](const Candidate& c) { return !c.metric; });
  std::ranges::stable_sort(candidates, {}, [&](const Candidate& c) {
    return rule.lower_is_better ? *c.metric : -*c.metric;
  });
  for (size_t i = 0; i < candidates.size() && i < static_cast<size_t>(rule.keep_best); ++i)
    add(candidates[i]);
  return keep;
}

/// Of a folder that stays because of other files in it: the manifest first, so that nobody takes
/// the rest for a checkpoint.
std::error_code move_checkpoint(const fs::path& folder, const OwnNames& own,
                                const fs::path& aside) {
  const auto move = [&](const IsOwn& is_own) { return move_own_files(folder, aside, is_own); };
  std::error_code error = move([](const std::string& path) { return path == kManifestName; });
  if (!error) {
    sync_path(folder);
    error = move([&](const std::string& path) { return own.has(path); });
  }
  if (!error) sync_path(folder);
  return error;
}

/// Takes the name away first, durably, so that nobody takes half a folder for a checkpoint. What a
/// killed process leaves has a name that remove_abandoned() knows.
void remove_checkpoint(const Candidate& candidate, bool stays,
                       const std::function<void()>& progress) {
  const fs::path& folder = candidate.folder.path;
  fs::path aside = folder;
  aside += fmt::format("{}{}{}", kAside, ::getpid(), kRemoved);
  std::error_code error;
  if (stays)
    error = move_checkpoint(folder, candidate.own, aside);
  else
    fs::rename(folder, aside, error);
  if (error) raise<CheckpointError>("cannot remove {}: {}", folder.string(), error.message());
  sync_path(folder.has_parent_path() ? folder.parent_path() : fs::path("."));
  error = remove_tree(aside, progress);
  if (error) raise<CheckpointError>("cannot remove {}: {}", folder.string(), error.message());
}

/// Moves what a killed move_checkpoint() has left in the folder. The manifest went first, so that
/// it tells which files these are. Returns false if that must be tried again later.
bool finish_move(const fs::path& folder, const fs::path& aside) {
  std::error_code error;
  if (!fs::is_directory(folder, error) || fs::exists(folder / kManifestName, error) ||
      !fs::exists(aside / kManifestName, error))
    return true; // nothing of it is left there
  try {
    return !move_checkpoint(folder, own_names(read_manifest(aside)), aside);
  } catch (const CheckpointError&) { // nobody knows which files these are
    return true;
  }
}

} // namespace

void remove_abandoned(const fs::path& dir, const DirectoryLock& lock,
                      const std::function<void()>& progress) {
  if (!lock.held()) return;
  for (const std::string& name : names_in(dir)) {
    const size_t aside = name.find(kAside);
    if (aside == std::string::npos) continue;
    const std::string of = name.substr(0, aside);
    if (of != kLatestName && !iteration_of(of)) continue;
    if (name.ends_with(kRemoved) && !finish_move(dir / of, dir / name)) continue;
    remove_tree(dir / name, progress);
  }
}

PruneReport prune_checkpoints(const fs::path& dir, const Retention& retention, bool only_report,
                              const std::function<void()>& progress) {
  if (retention.keep_last < 0 || retention.keep_every < 0 || retention.keep_best < 0)
    raise<CheckpointError>("the number of checkpoints to keep in {} is negative", dir.string());
  std::error_code error;
  if (!fs::is_directory(dir, error)) raise<CheckpointError>("{} is not a folder", dir.string());
  std::optional<DirectoryLock> lock;
  if (!only_report) remove_abandoned(dir, lock.emplace(dir), progress);
  PruneReport report;
  const auto latest = latest_name(dir);
  std::vector<Candidate> candidates;
  for (const CheckpointFolder& folder : checkpoints_in(dir)) {
    const std::string name = folder.path.filename().string();
    if (latest && folder.iteration > *iteration_of(*latest)) {
      report.kept.push_back(name);
      continue;
    }
    if (!holds_checkpoint(folder.path)) continue; // files of the user are left of it
    try {
      candidates.push_back(examine(folder, retention));
    } catch (const CheckpointError& fault) {
      report.damaged.push_back(fmt::format("{}: {}", name, fault.what()));
    }
  }
  const std::set<std::string> keep = names_to_keep(candidates, retention);
  for (const Candidate& candidate : candidates) {
    const std::string name = candidate.folder.path.filename().string();
    const bool stays = keep.contains(name) || name == latest;
    (stays ? report.kept : report.removed).push_back(name);
    if (stays) continue;
    const std::vector<std::string> foreign = foreign_files(
        candidate.folder.path, [&](const std::string& path) { return candidate.own.has(path); });
    for (const std::string& path : foreign) report.foreign.push_back(name + "/" + path);
    if (!only_report) remove_checkpoint(candidate, !foreign.empty(), progress);
  }
  return report;
}

} // namespace pentatron::checkpoint
