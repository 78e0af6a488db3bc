#include "pentatron/checkpoint/state_folder.h"

#include <algorithm>
#include <charconv>
#include <csignal>
#include <fstream>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include "pentatron/base/atomic_file.h"
#include "pentatron/base/crc32c.h"
#include "pentatron/base/error.h"
#include "pentatron/base/mapped_file.h"
#include "pentatron/checkpoint/train_state.h"

namespace pentatron::checkpoint {

namespace fs = std::filesystem;

namespace {

constexpr int64_t kFormat = 1;
constexpr std::string_view kPrefix = "iter_", kAside = ".tmp-";

std::string checksum(std::span<const std::byte> bytes) {
  return fmt::format("{:08x}", crc32c(bytes));
}

/// Of everything but the checksum itself; members are sorted, so the text is unique.
std::string own_checksum(Json state) {
  state.erase("crc32c");
  const std::string text = dump_json(state);
  return checksum(std::as_bytes(std::span(text)));
}

/// Iterations of the folders in `dir`, newest first.
std::vector<int64_t> iterations_in(const fs::path& dir) {
  std::vector<int64_t> found;
  std::error_code error;
  for (fs::directory_iterator it(dir, error), end; !error && it != end; it.increment(error)) {
    if (const auto iteration = folder_iteration(it->path().filename().string());
        iteration && it->is_directory(error))
      found.push_back(*iteration);
  }
  std::sort(found.rbegin(), found.rend());
  return found;
}

/// Whether `name` is what a process was writing or removing when it ended.
bool is_abandoned(const std::string& name) {
  const size_t aside = name.find(kAside);
  if (aside == std::string::npos) return false;
  if (const std::string of = name.substr(0, aside); of != "latest" && !folder_iteration(of))
    return false;
  const char* const begin = name.data() + aside + kAside.size();
  int process = 0;
  std::from_chars(begin, name.data() + name.size(), process);
  return process > 0 && process != ::getpid() && ::kill(process, 0) != 0 && errno == ESRCH;
}

/// Takes the name away first, so that nobody takes half a folder for a checkpoint.
void remove_folder(const fs::path& folder) {
  std::error_code error;
  fs::path aside = folder;
  aside += fmt::format("{}{}-old", kAside, ::getpid());
  fs::rename(folder, aside, error);
  fs::remove_all(error ? folder : aside, error);
}

} // namespace

std::string folder_name(int64_t iteration) {
  return fmt::format("{}{:07d}", kPrefix, iteration);
}

std::optional<int64_t> folder_iteration(const std::string& name) {
  int64_t iteration = -1;
  if (!name.starts_with(kPrefix)) return std::nullopt;
  std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), iteration);
  return iteration >= 0 && name == folder_name(iteration) ? std::optional(iteration) : std::nullopt;
}

void write_state(const fs::path& folder, Json state) {
  state["format"] = kFormat;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const MappedFile file(entry.path(), MappedFile::Access::kSequential);
    state["files"][entry.path().filename().string()] = {{"bytes", file.size()},
                                                        {"crc32c", checksum(file.bytes())}};
  }
  state["crc32c"] = own_checksum(state);
  write_file_atomically(folder / "state.json", dump_json(state, 2) + "\n");
}

Json read_state(const fs::path& folder) {
  const std::string where = (folder / "state.json").string();
  try {
    const Json state = read_json(folder / "state.json");
    const auto format = json_get<int64_t>(state, "format", where);
    if (format != kFormat)
      raise<CheckpointError>("{} has format {}, this program reads {}", where, format, kFormat);
    if (json_get<std::string>(state, "crc32c", where) != own_checksum(state))
      raise<CheckpointError>("{} is damaged: its checksum differs", where);
    return state;
  } catch (const DataError& error) {
    throw CheckpointError(error.what());
  }
}

void check_train_state(const fs::path& folder) {
  const Json state = read_state(folder);
  const Json files = state.value("files", Json::object());
  for (const auto& [name, written] : files.items()) {
    const std::string where = (folder / name).string();
    try {
      const MappedFile file(folder / name, MappedFile::Access::kSequential);
      const auto bytes = json_get<int64_t>(written, "bytes", where);
      if (static_cast<int64_t>(file.size()) != bytes)
        raise<CheckpointError>("{} is damaged: it has {} bytes and not {}", where, file.size(),
                               bytes);
      if (checksum(file.bytes()) != json_get<std::string>(written, "crc32c", where))
        raise<CheckpointError>("{} is damaged: its checksum differs", where);
    } catch (const DataError& error) {
      throw CheckpointError(error.what());
    }
  }
}

std::optional<FoundState> newest_train_state(const fs::path& dir) {
  if (fs::exists(dir / "state.json") || folder_iteration(dir.filename().string())) {
    check_train_state(dir);
    return FoundState{.folder = dir, .passed_over = {}};
  }
  std::string named;
  std::getline(std::ifstream(dir / "latest") >> std::ws, named);
  const std::optional<int64_t> newest = folder_iteration(named);
  std::vector<int64_t> candidates = iterations_in(dir);
  if (newest) {
    std::erase_if(candidates, [&](int64_t iteration) { return iteration >= *newest; });
    candidates.insert(candidates.begin(), *newest);
  }
  if (candidates.empty()) return std::nullopt;
  std::vector<std::string> damaged;
  for (const int64_t iteration : candidates) {
    const fs::path folder = dir / folder_name(iteration);
    try {
      check_train_state(folder);
      return FoundState{.folder = folder,
                        .passed_over = fmt::format("{}", fmt::join(damaged, "; "))};
    } catch (const CheckpointError& error) {
      damaged.emplace_back(error.what());
    }
  }
  raise<CheckpointError>("{} holds no whole checkpoint: {}", dir.string(),
                         fmt::join(damaged, "; "));
}

void prune(const fs::path& dir, int64_t iteration, int64_t keep) {
  std::vector<int64_t> folders = iterations_in(dir);
  std::erase_if(folders, [&](int64_t other) { return other > iteration; });
  for (size_t i = static_cast<size_t>(keep); keep > 0 && i < folders.size(); ++i)
    remove_folder(dir / folder_name(folders[i]));
  std::vector<fs::path> abandoned;
  std::error_code error;
  for (fs::directory_iterator it(dir, error), end; !error && it != end; it.increment(error)) {
    if (is_abandoned(it->path().filename().string())) abandoned.push_back(it->path());
  }
  for (const fs::path& path : abandoned) fs::remove_all(path, error);
}

} // namespace pentatron::checkpoint
