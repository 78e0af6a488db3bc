#include "pentatron/kernels/selection/cache.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

#include <sys/stat.h>

#include <fmt/format.h>

#include "pentatron/base/atomic_file.h"
#include "pentatron/base/error.h"
#include "pentatron/base/log.h"
#include "pentatron/base/sha256.h"

namespace pentatron::kernels {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kPrefix = "kernels-", kSuffix = ".json";

/// The first processor's lines that tell one model from another.
std::string processor() {
  std::ifstream in("/proc/cpuinfo");
  std::string text;
  for (std::string line; std::getline(in, line) && !line.empty();) {
    for (const char* key : {"model name", "flags", "cache size", "stepping"})
      if (line.starts_with(key)) text += line + "\n";
  }
  return text;
}

/// Changes when the program is built again.
std::string program() {
  struct stat status = {};
  if (::stat("/proc/self/exe", &status) != 0) return {};
  return fmt::format("{} {}.{:09}", status.st_size, status.st_mtim.tv_sec, status.st_mtim.tv_nsec);
}

fs::path cache_folder() {
  const auto absolute = [](const char* variable) {
    const char* const value = std::getenv(variable);
    return value != nullptr && value[0] == '/' ? fs::path(value) : fs::path();
  };
  if (const fs::path folder = absolute("XDG_CACHE_HOME"); !folder.empty()) return folder;
  const fs::path home = absolute("HOME");
  return home.empty() ? home : home / ".cache";
}

/// Empty if the file is missing or damaged.
Selection read(const fs::path& file) {
  std::error_code error;
  if (!fs::is_regular_file(file, error)) return {};
  std::ifstream in(file, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  try {
    Selection selection = Selection::parse(text.str(), file.string());
    return unusable_choices(selection).empty() ? selection : Selection();
  } catch (const DataError&) {
    return {};
  }
}

/// Removes all but the newest files of the folder: each build of the program has its own.
void remove_old(const fs::path& folder) {
  constexpr size_t kKept = 16;
  std::vector<std::pair<fs::file_time_type, fs::path>> files;
  std::error_code error;
  for (auto it = fs::directory_iterator(folder, error); !error && it != fs::directory_iterator();
       it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (name.starts_with(kPrefix) && name.ends_with(kSuffix))
      files.emplace_back(it->last_write_time(error), it->path());
  }
  std::ranges::sort(files, std::greater());
  for (size_t i = kKept; i < files.size(); ++i) fs::remove(files[i].second, error);
}

void write(const fs::path& file, const Selection& selection) {
  try {
    std::error_code ignored;
    fs::create_directories(file.parent_path(), ignored);
    write_file_atomically(file, selection.text());
    remove_old(file.parent_path());
  } catch (const Error& error) {
    log::info("the measured kernels cannot be stored, so every start measures them again: {}",
              error.what());
  }
}

} // namespace

fs::path selection_cache_file(const std::string& versions) {
  const fs::path folder = cache_folder();
  if (folder.empty()) return {};
  const char* const lowered = std::getenv("PENTATRON_CPU");
  const std::string identity =
      fmt::format("{}\n{}\n{}\n{}\n{}\n", processor(), lowered == nullptr ? "" : lowered,
                  num_threads(), versions, program());
  return folder / "pentatron" /
         fmt::format("{}{}{}", kPrefix, sha256(identity).substr(0, 16), kSuffix);
}

FoundSelection find_selection(const fs::path& file, const MeasureOptions& options) {
  FoundSelection found;
  if (!file.empty()) found.selection = read(file);
  const Selection before = found.selection;
  const auto begin = std::chrono::steady_clock::now();
  Completion completion = complete_selection(found.selection, options);
  found.measured = std::move(completion.measured);
  found.unmeasured = completion.unmeasured;
  found.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  if (!file.empty() && found.selection != before) write(file, found.selection);
  return found;
}

} // namespace pentatron::kernels
