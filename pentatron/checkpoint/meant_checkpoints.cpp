#include "pentatron/checkpoint/meant_checkpoints.h"

#include <tuple>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "pentatron/base/text.h"
#include "pentatron/checkpoint/sharded/folders.h"
#include "pentatron/config/config.h"

namespace pentatron::checkpoint {

namespace fs = std::filesystem;

namespace {

/// What is wanted of a run's configuration.
struct SavedFolder {
  std::string save;
  static constexpr auto fields() {
    return std::tuple{config::field("save", &SavedFolder::save, "folder of checkpoints")};
  }
};
struct RunWithFolder {
  SavedFolder checkpoint;
  static constexpr auto fields() {
    return std::tuple{config::field("checkpoint", &RunWithFolder::checkpoint, "checkpoints")};
  }
};

/// checkpoint.save of the run whose logger.dir `folder` is; empty if it is none.
fs::path saved_to(const fs::path& folder) {
  std::error_code error;
  const fs::path file = folder / kRunConfigName;
  if (!fs::is_regular_file(file, error)) return {};
  RunWithFolder run;
  config::Violations of_other_keys;
  config::apply_file(run, file, of_other_keys);
  return run.checkpoint.save;
}

std::vector<fs::path> meant(const fs::path& given) {
  const fs::path folder = given.has_filename() ? given : given.parent_path(); // "folder/"
  for (const fs::path& of_run : {folder / "checkpoints", saved_to(folder)})
    if (!of_run.empty() && !saved_in(of_run).empty()) return {of_run};
  std::vector<fs::path> beside;
  if (!folder.filename().string().starts_with("step_")) return beside;
  constexpr size_t kMost = 4;
  const fs::path parent = folder.has_parent_path() ? folder.parent_path() : fs::path(".");
  for (const CheckpointFolder& one : saved_in(parent))
    if (beside.size() < kMost) beside.push_back(folder.parent_path() / one.path.filename());
  return beside;
}

} // namespace

std::string meant_checkpoints(const fs::path& folder, std::string_view before,
                              std::string_view otherwise) {
  std::vector<std::string> ways;
  for (const fs::path& path : meant(folder))
    ways.push_back(fmt::format("{}{}", before, shell_word(path.string())));
  return ways.empty() ? std::string(otherwise) : fmt::format("{}", fmt::join(ways, " or "));
}

std::string_view lack_of_checkpoints(const fs::path& folder) {
  std::error_code ignored;
  return fs::exists(folder, ignored) ? "contains no checkpoint" : "does not exist";
}

} // namespace pentatron::checkpoint
