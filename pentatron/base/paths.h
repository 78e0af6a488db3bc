/// Checks of the paths that users name, before any work is done for them.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace pentatron {

/// Whether there is a file, folder or link of this name, which a link without a target is too.
bool is_there(const std::filesystem::path& path);

/// What a link names, so that replacing it replaces that and not the link: the path without links.
/// Any other path stays as it is. For paths that a user has typed; links in files of others are not
/// to be followed.
std::filesystem::path behind_links(const std::filesystem::path& path);

/// Throws ConfigError if one of the files that an option names is there, whatever it is.
void refuse_existing(std::span<const std::filesystem::path> outputs,
                     std::string_view option = "--output");

/// `path`, or the nearest one above it that is there, as an absolute path.
std::filesystem::path nearest_existing(const std::filesystem::path& path);

/// Why `path` cannot be created or, as a folder, be written in: "DIR is not writable (why)".
/// Creates a folder in the nearest one above that exists and removes it, because permissions do not
/// cover read-only and full disks.
std::optional<std::string> why_not_writable(const std::filesystem::path& path);

/// Throws ConfigError unless `output`, which an option or argument names, can be created: it or the
/// nearest existing folder above it must be writable.
void require_output(const std::filesystem::path& output, std::string_view option);

/// Throws ConfigError unless `output`, which an option names, can be a file in an existing folder;
/// `extension` (".json") is what such files end in.
void require_folder_of(const std::filesystem::path& output, std::string_view option,
                       std::string_view extension);

/// For --overwrite: throws ConfigError if `output` is one of the inputs, under any name, or if it
/// is there and `is_one` finds that it is not `what` ("a plot"), which such a command writes.
void check_replaced(const std::filesystem::path& output,
                    std::span<const std::filesystem::path> inputs, std::string_view option,
                    std::string_view what,
                    const std::function<bool(const std::filesystem::path&)>& is_one);

/// The first of NAME-2.ext, NAME-3.ext, ... that does not exist, for another output than `taken`.
std::filesystem::path free_path(const std::filesystem::path& taken);

/// Whether `inner` is `outer` or lies in it, links followed.
bool contains_path(const std::filesystem::path& outer, const std::filesystem::path& inner);

} // namespace pentatron
