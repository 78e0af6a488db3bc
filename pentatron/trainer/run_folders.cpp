#include "pentatron/trainer/run_folders.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <optional>
#include <span>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include "pentatron/base/atomic_file.h"
#include "pentatron/base/error.h"
#include "pentatron/base/log.h"
#include "pentatron/base/mapped_file.h"
#include "pentatron/base/paths.h"
#include "pentatron/base/text.h"
#include "pentatron/checkpoint/machines.h"
#include "pentatron/checkpoint/run_checkpoint.h"
#include "pentatron/checkpoint/sharded/manifest.h"
#include "pentatron/comm/gather_text.h"
#include "pentatron/plot/metrics_text.h"
#include "pentatron/trainer/checkpoint_export.h"
#include "pentatron/trainer/described_run.h"
#include "pentatron/trainer/differences.h"
#include "pentatron/trainer/run_files.h"

namespace pentatron::trainer {

namespace fs = std::filesystem;

namespace {

/// Comparable, whether it exists or not; without a slash at its end.
fs::path full_path(const fs::path& path) {
  if (path.empty()) return {};
  std::error_code error;
  fs::path result = fs::weakly_canonical(fs::absolute(path, error), error);
  return result.has_filename() ? result : result.parent_path();
}

/// What leads from `outer` to `inner`; none if that lies elsewhere.
std::optional<fs::path> path_within(const fs::path& inner, const fs::path& outer) {
  if (inner.empty() || outer.empty()) return std::nullopt;
  const fs::path way = full_path(inner).lexically_relative(full_path(outer));
  if (way.empty() || *way.begin() == "..") return std::nullopt;
  return way;
}

bool has_metrics(const fs::path& dir) {
  std::error_code error;
  const auto size = fs::file_size(dir / kMetricsFile, error);
  return !dir.empty() && !error && size > 0;
}

/// Whether a run has begun to write there, but has not made a step.
bool has_failed_start(const fs::path& dir) {
  std::error_code error;
  const auto size = fs::file_size(dir / kMetricsFile, error);
  return !dir.empty() && !error && size == 0;
}

/// The first of these names that is in the folder; empty if none is.
fs::path first_of(const fs::path& folder, std::span<const char* const> names) {
  if (folder.empty()) return {};
  for (const char* name : names)
    if (is_there(folder / name)) return folder / name;
  return {};
}

bool has_checkpoints(const fs::path& dir) {
  return !dir.empty() && !checkpoint::checkpoints_in(dir).empty();
}

bool is_same(const fs::path& a, const fs::path& b) {
  return full_path(a) == full_path(b);
}

[[noreturn]] void refuse_folder(const std::string& key, const fs::path& folder,
                                const std::string& why) {
  constexpr size_t kShown = 200;
  raise<ConfigError>("{}={} is not a writable folder: {}\n  try: another {}", key,
                     excerpt(folder.string(), kShown), excerpt(why, 2 * kShown), key);
}

/// Makes a folder that can be written in: before the run, not after it. Adds what did not exist.
void require_folder(const std::string& key, const fs::path& folder, std::vector<fs::path>& made) {
  require_writable(key, folder);
  if (folder.empty()) return;
  const size_t before = made.size();
  for (fs::path missing = full_path(folder); !is_there(missing) && missing.has_relative_path();
       missing = missing.parent_path())
    made.insert(made.begin() + static_cast<std::ptrdiff_t>(before), missing);
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) refuse_folder(key, folder, error.message());
}

/// Whether `dir` was the logger.dir of a run that made a step. A config.yaml of the user may lie
/// beside checkpoints; that of a run names its folder.
bool has_results(const fs::path& dir) {
  if (dir.empty() || has_failed_start(dir)) return false;
  if (has_metrics(dir) || is_there(dir / kSummaryFile)) return true;
  try {
    const std::string logs = stored_config(MappedFile(dir / kConfigFile).text()).logger.dir;
    return !logs.empty() && is_same(logs, dir);
  } catch (const Error&) {
    return false;
  }
}

/// The folder of the run that this one goes on with; none for a new run.
std::optional<fs::path> resumed_run(const CheckpointConfig& c) {
  if (c.load.empty() || c.finetune || foreign_model(c)) return std::nullopt;
  if (loads_own(c)) return c.save;
  std::error_code error;
  const fs::path path = full_path(c.load);
  const bool is_one = fs::exists(path / checkpoint::kManifestName, error);
  const auto latest = checkpoint::latest_name(path);
  try {
    if (const fs::path one = is_one ? path : path / latest.value_or("");
        (is_one || latest) && !checkpoint::saved_run(one).has_training_state)
      return std::nullopt; // weights alone begin a new run
  } catch (const Error&) { // told when it is loaded
  }
  return is_one ? path.parent_path() : path;
}

/// Whether the folders of `config` lay to each other as these do: then a user has moved them.
bool moved_together(const Config& config, const fs::path& run, const fs::path& dir) {
  const fs::path save = config.checkpoint.save, logs = config.logger.dir;
  const auto way = path_within(run, dir), back = path_within(dir, run);
  return (way && way == path_within(save, logs)) || (back && back == path_within(logs, save));
}

/// Whether the results in logger.dir are of the run whose checkpoints lie in `run`. Its config.yaml
/// knows, or else the latest checkpoint; without both, the folder around the checkpoints is theirs.
bool wrote_metrics(const fs::path& run, const fs::path& dir) {
  std::optional<Config> of_metrics, of_checkpoint;
  try {
    of_metrics = stored_config(MappedFile(dir / kConfigFile).text());
    if (is_same(of_metrics->checkpoint.save, run)) return true;
  } catch (const Error&) { // it was ended before that was written
  }
  try {
    if (const auto latest = checkpoint::latest_name(run))
      of_checkpoint = stored_config(checkpoint::saved_run(run / *latest).config_yaml);
  } catch (const Error&) { // told when it is loaded
  }
  if (of_checkpoint && is_same(of_checkpoint->logger.dir, dir)) return true;
  if (!of_metrics) return path_within(run, dir).has_value();
  return moved_together(*of_metrics, run, dir) ||
         (of_checkpoint && moved_together(*of_checkpoint, run, dir));
}

/// The keys of a run in folders that nobody has: NAME-2, NAME-3, ...; below `.` run-2, run-3, ...
std::string new_folders(const Config& config) {
  const fs::path dir = config.logger.dir, save = config.checkpoint.save;
  const auto numbered = [](const fs::path& folder, int n) -> fs::path {
    if (folder.empty()) return {};
    fs::path plain = folder.lexically_normal();
    if (!plain.has_filename()) plain = plain.parent_path();
    const fs::path name = plain.filename();
    if (name.empty() || name == "." || name == "..") // they have no name of their own
      return (plain / fmt::format("run-{}", n)).lexically_normal();
    return fmt::format("{}-{}", plain.string(), n);
  };
  const auto below = [](const fs::path& outer, const fs::path& way) {
    return way == "." ? outer : outer / way;
  };
  const auto taken = [](const fs::path& folder) { return !folder.empty() && is_there(folder); };
  for (int n = 2;; ++n) {
    fs::path new_dir = numbered(dir, n), new_save = numbered(save, n);
    if (const auto way = path_within(save, dir)) {
      new_save = below(new_dir, *way);
    } else if (const auto outward = path_within(dir, save)) {
      new_dir = below(new_save, *outward);
    }
    if (taken(new_dir) || taken(new_save)) continue;
    std::string keys;
    if (!dir.empty()) keys = shell_word("logger.dir=" + new_dir.string());
    if (!save.empty())
      keys += (keys.empty() ? "" : " ") + shell_word("checkpoint.save=" + new_save.string());
    return keys;
  }
}

/// How to go on with the run whose checkpoints lie in `run`.
std::string resume_keys(const Config& config, const fs::path& run) {
  std::string keys = shell_word("checkpoint.load=" + run.string());
  if (!is_same(run, config.checkpoint.save))
    keys += " " + shell_word("checkpoint.save=" + run.string());
  if (config.checkpoint.finetune) keys += " checkpoint.finetune=false";
  return keys;
}

/// Throws: the checkpoints of a run that this one does not go on with lie in `folder`.
[[noreturn]] void refuse_checkpoints(const Config& config, const char* key,
                                     const fs::path& folder) {
  const auto named = checkpoint::checkpoints_in(folder);
  if (checkpoint::saved_in(folder).empty() && !named.empty()) // files of the user are left of it
    raise<ConfigError>("{}={} contains {}, which has the name of a checkpoint and contains other "
                       "files\n  try: {} for a new run, or move {}",
                       key, folder.string(), named[0].path.filename().string(), new_folders(config),
                       shell_word(named[0].path.string()));
  bool resumes = true;
  try {
    const auto latest = checkpoint::latest_name(folder);
    resumes = !latest || checkpoint::saved_run(folder / *latest).has_training_state;
  } catch (const Error&) { // told when it is resumed
  }
  raise<ConfigError>("{}={} contains {}\n  try: {}{} for a new run", key, folder.string(),
                     resumes ? "the checkpoints of another run" : "weights of another model",
                     resumes ? resume_keys(config, folder) + " to resume it, or " : "",
                     new_folders(config));
}

/// The same of its metrics.
[[noreturn]] void refuse_metrics(const Config& config, const char* key, const fs::path& folder) {
  std::string ways = new_folders(config) + " for a new run";
  try {
    const fs::path theirs = stored_config(MappedFile(folder / kConfigFile).text()).checkpoint.save;
    if (has_checkpoints(theirs)) ways = resume_keys(config, theirs) + " to resume it, or " + ways;
  } catch (const Error&) { // its checkpoints are not known
  }
  raise<ConfigError>("{}={} contains the metrics of another run\n  try: {}", key, folder.string(),
                     ways);
}

/// Whether the metrics are of an earlier start of this run, from the same model and for the same
/// checkpoints, of which it made none: there is nothing to go on with.
bool started_before(const Config& config, bool saved) {
  const CheckpointConfig& c = config.checkpoint;
  if (saved || c.save.empty() || !has_metrics(config.logger.dir) || resumed_run(c) ||
      c.load.empty())
    return false;
  try {
    const CheckpointConfig earlier =
        stored_config(MappedFile(fs::path(config.logger.dir) / kConfigFile).text()).checkpoint;
    return earlier.load == c.load && earlier.finetune == c.finetune &&
           is_same(earlier.save, c.save);
  } catch (const Error&) {
    return false;
  }
}

/// Throws if a folder of a run is a model or lies in a checkpoint, among whose files those of the
/// run would be.
void refuse_models(const Config& config, const char* key, const fs::path& folder) {
  if (folder.empty()) return;
  if (is_there(folder / "config.json"))
    raise<ConfigError>("{}={} contains a model (config.json), {}\n  try: {}", key, folder.string(),
                       key == std::string_view("logger.dir")
                           ? "with which the files of the run would be mixed"
                           : "which would hide the checkpoints from other commands",
                       new_folders(config));
  for (fs::path above = full_path(folder); above.has_relative_path(); above = above.parent_path())
    if (checkpoint::iteration_of(above.filename().string()) && checkpoint::holds_checkpoint(above))
      raise<ConfigError>("{}={} is in a checkpoint, {}\n  try: {}", key, folder.string(),
                         above.string(), new_folders(config));
}

/// Throws if a run that this one does not go on with has left results: in either folder, of either
/// kind. `saved`: checkpoint.save has checkpoints, here or on another machine.
void check_results(const Config& config, bool saved) {
  const CheckpointConfig& c = config.checkpoint;
  const std::optional<fs::path> run = resumed_run(c);
  const fs::path dir = config.logger.dir, save = c.save;
  if (saved && !(run && is_same(*run, save))) refuse_checkpoints(config, "checkpoint.save", save);
  const bool own =
      (run && !dir.empty() && wrote_metrics(*run, dir)) || started_before(config, saved);
  if (has_metrics(dir) && !own) refuse_metrics(config, "logger.dir", dir);
  if (!is_same(dir, save)) {
    if (!saved && has_results(save) && !(run && wrote_metrics(*run, save)))
      refuse_metrics(config, "checkpoint.save", save);
    if (has_checkpoints(dir) && !(run && is_same(*run, dir)) && !(own && has_metrics(dir)))
      refuse_checkpoints(config, "logger.dir", dir);
  }
  fs::path file;
  if (!saved && !c.save.empty()) {
    file = first_of(c.save, std::array{checkpoint::kLatestName});
    const auto exports = checkpoint::checkpoints_in(fs::path(c.save) / kExportFolder);
    if (!exports.empty()) file = exports[0].path;
    if (file.empty() && c.export_hf && config.peft.on())
      file = first_of(fs::path(c.save) / kAdapterFolder,
                      std::array{"adapter_config.json", "adapter_model.safetensors"});
  }
  if (file.empty() && !(own && saved) && !has_metrics(dir) && !has_failed_start(dir))
    file = first_of(dir, kRunFiles);
  if (!saved) refuse_models(config, "checkpoint.save", save);
  if (!own) refuse_models(config, "logger.dir", dir);
  if (!file.empty())
    raise<ConfigError>("{} exists, and the run would overwrite it\n  try: {}", file.string(),
                       new_folders(config));
}

/// "earlier-N" for the first N after those of the folders.
std::string earlier_name(const std::vector<fs::path>& folders) {
  int n = 1;
  const auto taken = [&](const std::string& name) {
    return std::ranges::any_of(folders, [&](const fs::path& f) { return is_there(f / name); });
  };
  while (taken(fmt::format("earlier-{}", n))) ++n;
  return fmt::format("earlier-{}", n);
}

void make_folder(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) raise<ConfigError>("{} cannot be created: {}", folder.string(), error.message());
}

void move_into(const fs::path& folder, const fs::path& path) {
  std::error_code error;
  fs::rename(path, folder / path.filename(), error);
  if (error)
    raise<ConfigError>("{} cannot be moved to {}: {}", path.string(), folder.string(),
                       error.message());
}

/// Moves what an attempt without a checkpoint has written out of the way.
void set_aside(const fs::path& dir) {
  const fs::path earlier = dir / earlier_name({dir});
  make_folder(earlier);
  for (const char* name : kRunFiles)
    if (is_there(dir / name)) move_into(earlier, dir / name);
  log::info("the earlier run ended before its first checkpoint, so this run starts again; the "
            "files of the earlier run are in {}",
            earlier.string());
}

/// Whether metrics.jsonl has lines that a run from `iteration` cuts off.
bool has_metrics_after(const fs::path& dir, int64_t iteration) {
  try {
    return plot::parse_metrics(MappedFile(dir / kMetricsFile).text(), iteration).has_later;
  } catch (const DataError&) {
    return true; // nobody knows
  }
}

/// Copies the files of a run, which it will change or replace; its folders only grow.
void copy_files(const fs::path& dir, const fs::path& to) {
  make_folder(to);
  std::error_code error;
  for (const char* name : kRunFiles)
    if (fs::is_regular_file(dir / name, error) && fs::file_size(dir / name, error) > 0)
      write_file_atomically(to / name, MappedFile(dir / name).text());
}

/// Newest first.
std::vector<checkpoint::CheckpointFolder> checkpoints_after(const fs::path& save,
                                                            int64_t iteration) {
  std::vector<checkpoint::CheckpointFolder> found = checkpoint::checkpoints_in(save);
  std::erase_if(found, [&](const auto& folder) { return folder.iteration <= iteration; });
  return found;
}

} // namespace

void require_writable(const std::string& key, const fs::path& folder) {
  if (folder.empty()) return;
  if (const auto why = why_not_writable(folder)) refuse_folder(key, folder, *why);
}

RunFolders::Taken::~Taken() {
  if (kept) return;
  for (RunLock& lock : locks) lock.remove();
  std::error_code not_empty;
  for (auto folder = made.rbegin(); folder != made.rend(); ++folder) fs::remove(*folder, not_empty);
}

RunFolders::RunFolders(const Config& own, const comm::Group& world)
    : config_(equal_config(own, world)) {
  const Config& config = config_;
  if (total_iterations(config.train) == 0) return;
  const CheckpointConfig& c = config.checkpoint;
  const bool first = world.rank() == 0;
  std::vector<fs::path> folders;
  for (const fs::path& folder : {fs::path(config.logger.dir), fs::path(c.save)})
    if (!folder.empty() && (folders.empty() || !is_same(folder, folders[0])))
      folders.push_back(folder);
  taken_.locks.resize(folders.size());
  const auto lock = [&](bool create) {
    for (size_t i = 0; i < folders.size(); ++i)
      if (const auto owner = taken_.locks[i].take(folders[i], create))
        raise<ConfigError>("{} is in use by {}\n  try: {}", folders[i].string(), *owner,
                           new_folders(config));
  };
  const bool saved_here = (first || c.node_local) && has_checkpoints(c.save);
  const std::vector<std::string> all = comm::gather_text(saved_here ? "yes" : "", world);
  const bool saved = std::ranges::find(all, "yes") != all.end();
  comm::together<ConfigError>(world, first, [&] {
    lock(/*create=*/false);
    check_results(config, saved);
    require_folder("logger.dir", config.logger.dir, taken_.made);
    require_folder("checkpoint.save", c.save, taken_.made);
    lock(/*create=*/true);
    check_results(config, saved || has_checkpoints(c.save)); // another run was quicker
    const fs::path dir = config.logger.dir;
    const bool again = (loads_own(c) && has_metrics(dir)) || started_before(config, saved);
    if (!saved && (again || has_failed_start(dir))) set_aside(dir);
  });
  comm::together<ConfigError>(world, !first, [&] {
    require_folder("logger.dir", config.logger.dir, taken_.made);
    require_folder("checkpoint.save", c.save, taken_.made);
  });
  if (!c.node_local || c.save.empty()) return;
  const checkpoint::Machines machines(c.save, world);
  comm::together<ConfigError>(world, machines.leads() && !first, [&] {
    folders = {c.save};
    taken_.locks.resize(1);
    lock(/*create=*/true);
  });
}

void RunFolders::begin(int64_t iteration, const comm::Group& world, const std::string& repair) {
  taken_.kept = true;
  const fs::path dir = config_.logger.dir, save = config_.checkpoint.save;
  const bool first = world.rank() == 0;
  const bool leads =
      !save.empty() &&
      (config_.checkpoint.node_local ? checkpoint::Machines(save, world).leads() : first);
  const std::vector<checkpoint::CheckpointFolder> later =
      leads ? checkpoints_after(save, iteration) : std::vector<checkpoint::CheckpointFolder>{};
  const bool has_files = first && has_metrics(dir);
  const bool cuts = has_files && has_metrics_after(dir, iteration);
  std::vector<fs::path> folders;
  if (!later.empty()) folders.push_back(save);
  if (has_files) folders.push_back(dir);
  std::string name = later.empty() && !cuts ? "" : earlier_name(folders);
  // All machines use the highest number.
  for (const std::string& other : comm::gather_text(name, world))
    if (other.size() > name.size() || (other.size() == name.size() && other > name)) name = other;
  if (name.empty()) return;
  comm::together<ConfigError>(world, has_files, [&] { copy_files(dir, dir / name); });
  // `latest` first: whatever is found after a kill is what this run goes on with.
  comm::together<ConfigError>(world, !later.empty(), [&] {
    if (const std::string own = checkpoint::step_name(iteration); is_there(save / own))
      write_file_atomically(save / checkpoint::kLatestName, own + "\n");
    make_folder(save / name);
    for (const checkpoint::CheckpointFolder& folder : later) {
      if (const fs::path exported = save / kExportFolder / folder.path.filename();
          is_there(exported)) {
        make_folder(save / name / kExportFolder);
        move_into(save / name / kExportFolder, exported);
      }
      move_into(save / name, folder.path);
    }
  });
  if (!first) return;
  std::vector<std::string> kept;
  if (!later.empty())
    kept.push_back(fmt::format("its later checkpoints, from {} on, are in {}",
                               later.back().path.filename().string(), (save / name).string()));
  else if (!cuts)
    kept.push_back(
        fmt::format("its later checkpoints on other machines are in {}", (save / name).string()));
  if (has_files)
    kept.push_back(fmt::format("a copy of its metrics is in {}", (dir / name).string()));
  std::string hint;
  for (const checkpoint::CheckpointFolder& folder : later) {
    const std::string one = folder.path.filename().string();
    if (repair.ends_with("/" + one))
      hint = fmt::format("\n  try: pentatron checkpoint repair {}",
                         shell_word((save / name / one).string()));
  }
  log::info("the run goes back to iteration {}: {}{}", iteration, fmt::join(kept, ", and "), hint);
}

void check_folders(const Config& config) {
  if (total_iterations(config.train) == 0) return;
  for (const auto& [key, folder] : {std::pair{"logger.dir", fs::path(config.logger.dir)},
                                    {"checkpoint.save", fs::path(config.checkpoint.save)}}) {
    if (folder.empty()) continue;
    RunLock lock;
    if (const auto owner = lock.take(folder, /*create=*/false))
      raise<ConfigError>("{} is in use by {}\n  try: {}", folder.string(), *owner,
                         new_folders(config));
    require_writable(key, folder);
  }
  check_results(config, has_checkpoints(config.checkpoint.save));
}

} // namespace pentatron::trainer
