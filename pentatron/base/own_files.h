/// Removes what the program wrote from a folder in which a user may have put files, too.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace pentatron {

/// Takes a path relative to the folder, "spare_00/manifest.json".
using IsOwn = std::function<bool(const std::string&)>;

/// The paths, relative to `folder` and sorted, that are not the program's: other files, links, and
/// folders in which nothing is.
std::vector<std::string> foreign_files(const std::filesystem::path& folder, const IsOwn& is_own);

/// Moves the program's own files into `target`, which is on the same disk, and removes the folders
/// that are empty then. Returns the first error.
std::error_code move_own_files(const std::filesystem::path& folder,
                               const std::filesystem::path& target, const IsOwn& is_own);

/// Removes the program's own files, and the folders that are empty then. Returns the first error.
std::error_code remove_own_files(const std::filesystem::path& folder, const IsOwn& is_own,
                                 const std::function<void()>& progress = {});

} // namespace pentatron
