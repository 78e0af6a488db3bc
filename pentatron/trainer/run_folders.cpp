#include "pentatron/trainer/run_folders.h"

#include <algorithm>
#include <cerrno>
#include <functional>
#include <optional>

#include <fmt/format.h>
#include <unistd.h>

#include "pentatron/base/error.h"
#include "pentatron/base/log.h"
#include "pentatron/base/mapped_file.h"
#include "pentatron/checkpoint/machines.h"
#include "pentatron/checkpoint/run_checkpoint.h"
#include "pentatron/checkpoint/sharded/manifest.h"
#include "pentatron/comm/gather_text.h"
#include "pentatron/trainer/differences.h"

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
  const auto size = fs::file_size(dir / "metrics.jsonl", error);
  return !dir.empty() && !error && size > 0;
}

bool has_checkpoints(const fs::path& dir) {
  return !dir.empty() && !checkpoint::checkpoints_in(dir).empty();
}

/// Throws if nothing can be written there: before the run, not after it.
void require_folder(const std::string& key, const fs::path& folder) {
  if (folder.empty()) return;
  std::error_code error;
  fs::create_directories(folder, error);
  if (!error && !fs::is_directory(folder)) error = std::make_error_code(std::errc::not_a_directory);
  if (!error && ::access(folder.c_str(), W_OK) != 0)
    error = std::error_code(errno, std::generic_category());
  if (error) {
    raise<ConfigError>("{}={} is not a writable folder: {}\n  try: another {}", key,
                       folder.string(), error.message(), key);
  }
}

Config parsed(std::string_view yaml) {
  Config config;
  config::Violations ignored; // of an older program
  config::apply_yaml(config, std::string(yaml), "", ignored);
  return config;
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

/// Whether the results in logger.dir are of the run whose checkpoints lie in `run`.
bool wrote_metrics(const fs::path& run, const fs::path& dir) {
  if (path_within(run, dir)) return true;
  try {
    const std::string yaml(MappedFile(dir / "config.yaml").text());
    if (full_path(parsed(yaml).checkpoint.save) == full_path(run)) return true;
  } catch (const Error&) { // it was ended before that was written
  }
  try {
    if (const auto latest = checkpoint::latest_name(run))
      return full_path(parsed(checkpoint::saved_run(run / *latest).config_yaml).logger.dir) ==
             full_path(dir);
  } catch (const Error&) { // told when it is loaded
  }
  return false;
}

/// The keys of a run in folders that nobody has: NAME-2, NAME-3, ...
std::string new_folders(const Config& config) {
  const fs::path dir = config.logger.dir, save = config.checkpoint.save;
  const auto numbered = [](const fs::path& folder, int n) {
    const fs::path plain = folder.has_filename() ? folder : folder.parent_path();
    return folder.empty() ? fs::path() : fs::path(fmt::format("{}-{}", plain.string(), n));
  };
  const auto below = [](const fs::path& outer, const fs::path& way) {
    return way == "." ? outer : outer / way;
  };
  const auto taken = [](const fs::path& folder) {
    std::error_code error;
    return !folder.empty() && fs::exists(fs::symlink_status(folder, error));
  };
  for (int n = 2;; ++n) {
    fs::path new_dir = numbered(dir, n), new_save = numbered(save, n);
    if (const auto way = path_within(save, dir)) {
      new_save = below(new_dir, *way);
    } else if (const auto outward = path_within(dir, save)) {
      new_dir = below(new_save, *outward);
    }
    if (taken(new_dir) || taken(new_save)) continue;
    std::string keys;
    if (!dir.empty()) keys = "logger.dir=" + new_dir.string();
    if (!save.empty()) keys += (keys.empty() ? "" : " ") + ("checkpoint.save=" + new_save.string());
    return keys;
  }
}

/// How to go on with the run whose checkpoints lie in `run`.
std::string resume_keys(const Config& config, const fs::path& run) {
  std::string keys = "checkpoint.load=" + run.string();
  if (full_path(run) != full_path(config.checkpoint.save))
    keys += " checkpoint.save=" + run.string();
  if (config.checkpoint.finetune) keys += " checkpoint.finetune=false";
  return keys;
}

/// Throws if a run that this one does not go on with has left results. `saved`: checkpoint.save
/// has checkpoints, here or on another machine.
void check_results(const Config& config, bool saved) {
  const CheckpointConfig& c = config.checkpoint;
  const std::optional<fs::path> run = resumed_run(c);
  if (saved && !(run && full_path(*run) == full_path(c.save)))
    raise<ConfigError>("checkpoint.save={} holds the checkpoints of another run\n  try: {} to "
                       "resume it, or {} for a new run",
                       c.save, resume_keys(config, c.save), new_folders(config));
  const fs::path dir = config.logger.dir;
  if (!has_metrics(dir) || (run && wrote_metrics(*run, dir))) return;
  std::string ways = new_folders(config) + " for a new run";
  try {
    const fs::path theirs = parsed(MappedFile(dir / "config.yaml").text()).checkpoint.save;
    if (has_checkpoints(theirs)) ways = resume_keys(config, theirs) + " to resume it, or " + ways;
  } catch (const Error&) { // its checkpoints are not known
  }
  raise<ConfigError>("logger.dir={} holds the metrics of another run\n  try: {}", dir.string(),
                     ways);
}

/// Moves what an attempt without a checkpoint has written out of the way.
void set_aside(const fs::path& dir) {
  std::error_code error;
  int n = 1;
  const auto folder = [&] { return dir / fmt::format("earlier-{}", n); };
  while (!fs::create_directory(folder(), error)) {
    if (error) raise<ConfigError>("{} cannot be created: {}", folder().string(), error.message());
    ++n;
  }
  for (const char* name : {"metrics.jsonl", "config.yaml", "loss.svg", "tensorboard", "trace.json",
                           "pipeline.svg", "run.json", "skipped.jsonl", "wandb", "mlruns"}) {
    if (!fs::exists(fs::symlink_status(dir / name, error))) continue;
    fs::rename(dir / name, folder() / name, error);
    if (error)
      raise<ConfigError>("{} cannot be moved to {}: {}", (dir / name).string(), folder().string(),
                         error.message());
  }
  log::info("the earlier run ended before its first checkpoint, so this run starts again; the "
            "files of the earlier run are in {}",
            folder().string());
}

/// Runs `work` on some ranks; what it throws there, all throw.
void together(const comm::Group& world, bool here, const std::function<void()>& work) {
  std::string problem;
  try {
    if (here) work();
  } catch (const Error& error) {
    problem = error.what();
  }
  for (const std::string& text : comm::gather_text(problem, world))
    if (!text.empty()) throw ConfigError(text);
}

} // namespace

RunFolders::RunFolders(const Config& own, const comm::Group& world) {
  const Config config = equal_config(own, world);
  if (total_iterations(config.train) == 0) return;
  const CheckpointConfig& c = config.checkpoint;
  const bool first = world.rank() == 0;
  std::vector<fs::path> folders;
  for (const fs::path& folder : {fs::path(config.logger.dir), fs::path(c.save)})
    if (!folder.empty() && (folders.empty() || full_path(folder) != full_path(folders[0])))
      folders.push_back(folder);
  locks_.resize(folders.size());
  const auto lock = [&](bool create) {
    for (size_t i = 0; i < folders.size(); ++i)
      if (const auto owner = locks_[i].take(folders[i], create))
        raise<ConfigError>("{} is in use by {}\n  try: {}", folders[i].string(), *owner,
                           new_folders(config));
  };
  const bool saved_here = (first || c.node_local) && has_checkpoints(c.save);
  const std::vector<std::string> all = comm::gather_text(saved_here ? "yes" : "", world);
  const bool saved = std::ranges::find(all, "yes") != all.end();
  together(world, first, [&] {
    lock(/*create=*/false);
    check_results(config, saved);
    require_folder("logger.dir", config.logger.dir);
    require_folder("checkpoint.save", c.save);
    lock(/*create=*/true);
    check_results(config, saved || has_checkpoints(c.save)); // another run was quicker
    if (!saved && loads_own(c) && has_metrics(config.logger.dir)) set_aside(config.logger.dir);
  });
  together(world, !first, [&] {
    require_folder("logger.dir", config.logger.dir);
    require_folder("checkpoint.save", c.save);
  });
  if (!c.node_local || c.save.empty()) return;
  const checkpoint::Machines machines(c.save, world);
  together(world, machines.leads() && !first, [&] {
    folders = {c.save};
    locks_.resize(1);
    lock(/*create=*/true);
  });
}

} // namespace pentatron::trainer
