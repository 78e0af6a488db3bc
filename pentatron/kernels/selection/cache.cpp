#include "pentatron/kernels/selection/cache.h"

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include <sys/stat.h>

#include <fmt/format.h>

#include "pentatron/base/atomic_file.h"
#include "pentatron/base/error.h"
#include "pentatron/base/log.h"
#include "pentatron/base/sha256.h"

namespace pentatron::kernels {

namespace fs = std::filesystem;

namespace {

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

Selection read(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  if (!in) return {};
  std::ostringstream text;
  text << in.rdbuf();
  try {
    Selection selection = Selection::parse(text.str(), file.string());
    return unusable_choices(selection).empty() ? selection : Selection();
  } catch (const DataError&) {
    return {};
  }
}

void write(const fs::path& file, const Selection& selection) {
  try {
    std::error_code ignored;
    fs::create_directories(file.parent_path(), ignored);
    write_file_atomically(file, selection.text());
  } catch (const Error& error) {
    log::debug("the measured kernels cannot be stored: {}", error.what());
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
  return folder / "pentatron" / fmt::format("kernels-{}.json", sha256(identity).substr(0, 16));
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
