#include "pentatron/base/own_files.h"

#include <algorithm>
#include <system_error>

namespace pentatron {

namespace fs = std::filesystem;

namespace {

/// The folder's entries, before anything goes, which would confuse an iterator.
std::vector<fs::path> entries_of(const fs::path& folder, std::error_code& error) {
  std::vector<fs::path> entries;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
    entries.push_back(it->path());
  return entries;
}

bool is_folder(const fs::path& path) { // not a link to one
  std::error_code error;
  return fs::is_directory(fs::symlink_status(path, error));
}

bool is_plain_file(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(fs::symlink_status(path, error));
}

/// Calls `take` for the program's own files, which takes them out of the folder, and removes the
/// folders that are empty then. Returns the first error.
std::error_code take_own_files(const fs::path& folder, const IsOwn& is_own,
                               const std::function<std::error_code(const fs::path&)>& take) {
  std::error_code first;
  const auto keep_first = [&](const std::error_code& error) {
    if (error && !first) first = error;
  };
  const std::function<void(const fs::path&)> clear = [&](const fs::path& below) {
    std::error_code error;
    const std::vector<fs::path> entries = entries_of(below, error);
    keep_first(error);
    bool removed = false;
    for (const fs::path& entry : entries) {
      if (is_folder(entry)) {
        clear(entry);
        removed = removed || !is_folder(entry);
      } else if (is_plain_file(entry) && is_own(entry.lexically_relative(folder).string())) {
        const std::error_code failed = take(entry);
        keep_first(failed);
        removed = removed || !failed;
      }
    }
    if (!removed || !fs::is_empty(below, error)) return;
    fs::remove(below, error);
    keep_first(error);
  };
  clear(folder);
  return first;
}

} // namespace

std::vector<std::string> foreign_files(const fs::path& folder, const IsOwn& is_own) {
  std::vector<std::string> foreign;
  const std::function<void(const fs::path&)> look = [&](const fs::path& below) {
    std::error_code error;
    const std::vector<fs::path> entries = entries_of(below, error);
    if (entries.empty() && below != folder)
      foreign.push_back(below.lexically_relative(folder).string());
    for (const fs::path& entry : entries) {
      const std::string name = entry.lexically_relative(folder).string();
      if (is_folder(entry)) {
        look(entry);
      } else if (!is_plain_file(entry) || !is_own(name)) {
        foreign.push_back(name);
      }
    }
  };
  look(folder);
  std::ranges::sort(foreign);
  return foreign;
}

std::error_code move_own_files(const fs::path& folder, const fs::path& target,
                               const IsOwn& is_own) {
  return take_own_files(folder, is_own, [&](const fs::path& file) {
    std::error_code error;
    const fs::path to = target / file.lexically_relative(folder);
    fs::create_directories(to.parent_path(), error);
    if (!error) fs::rename(file, to, error);
    return error;
  });
}

std::error_code remove_own_files(const fs::path& folder, const IsOwn& is_own,
                                 const std::function<void()>& progress) {
  return take_own_files(folder, is_own, [&](const fs::path& file) {
    std::error_code error;
    fs::remove(file, error);
    if (progress) progress();
    return error;
  });
}

} // namespace pentatron
