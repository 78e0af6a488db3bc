#include "pentatron/base/paths.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include <unistd.h>

#include "pentatron/base/error.h"
#include "pentatron/base/text.h"

namespace pentatron {

namespace fs = std::filesystem;

bool is_there(const fs::path& path) {
  std::error_code error;
  return fs::exists(fs::symlink_status(path, error));
}

fs::path behind_links(const fs::path& path) {
  std::error_code error;
  const fs::path name = path.has_filename() ? path : path.parent_path(); // "DIR/"
  if (!fs::is_symlink(fs::symlink_status(name, error))) return path;
  fs::path target = fs::weakly_canonical(name, error);
  return error ? path : target;
}

void refuse_existing(std::span<const fs::path> outputs, std::string_view option) {
  for (const fs::path& output : outputs) {
    if (is_there(output))
      raise<ConfigError>("{} exists\n  try: another {}, or --overwrite to replace it",
                         output.string(), option);
  }
}

fs::path nearest_existing(const fs::path& path) {
  std::error_code error;
  fs::path existing = fs::absolute(path, error).lexically_normal();
  if (!existing.has_filename()) existing = existing.parent_path(); // "folder/"
  while (!is_there(existing) && existing.has_relative_path()) existing = existing.parent_path();
  return existing;
}

std::optional<std::string> why_not_writable(const fs::path& path) {
  std::error_code error;
  const fs::path existing = nearest_existing(path);
  if (!fs::is_directory(existing, error)) return existing.string() + " is not a folder";
  std::string probe = existing / ".pentatron-XXXXXX";
  if (::mkdtemp(probe.data()) == nullptr)
    return fmt::format("{} is not writable ({})", existing.string(), std::strerror(errno));
  ::rmdir(probe.c_str());
  return std::nullopt;
}

void require_output(const fs::path& output, std::string_view option) {
  std::error_code error;
  fs::path path = fs::absolute(output, error).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  if (const auto why = why_not_writable(path.parent_path()))
    raise<ConfigError>("{} {} cannot be created: {}\n  try: {} in a folder that you can write to",
                       option, output.string(), *why, option);
}

void require_folder_of(const fs::path& output, std::string_view option,
                       std::string_view extension) {
  std::error_code error;
  const fs::path folder = output.has_parent_path() ? output.parent_path() : ".";
  if (fs::is_directory(folder, error) && output.has_filename() && !fs::is_directory(output, error))
    return require_output(output, option);
  fs::path name = output.has_filename() ? output.filename() : folder.filename();
  raise<ConfigError>("{} {} is not a file in an existing folder\n  try: {} {}", option,
                     output.string(), option, name.replace_extension(extension).string());
}

fs::path free_path(const fs::path& taken) {
  fs::path plain = taken.lexically_normal();
  if (!plain.has_filename()) plain = plain.parent_path(); // "folder/"
  for (int n = 2;; ++n) {
    const fs::path name =
        fmt::format("{}-{}{}", plain.stem().string(), n, plain.extension().string());
    if (fs::path free = plain.parent_path() / name; !is_there(free)) return free;
  }
}

void check_replaced(const fs::path& output, std::span<const fs::path> inputs,
                    std::string_view option, std::string_view what,
                    const std::function<bool(const fs::path&)>& is_one) {
  if (!is_there(output)) return;
  std::error_code error;
  for (const fs::path& input : inputs)
    if (fs::equivalent(output, input, error))
      raise<ConfigError>("{} {} is an input of this command, and --overwrite would destroy it\n  "
                         "try: {} {}",
                         option, output.string(), option, shell_word(free_path(output).string()));
  if (!fs::is_regular_file(output, error) || !is_one(output))
    raise<ConfigError>("{} {} exists and is not {}, and --overwrite replaces nothing else\n  try: "
                       "{} {}",
                       option, output.string(), what, option,
                       shell_word(free_path(output).string()));
}

bool contains_path(const fs::path& outer, const fs::path& inner) {
  std::error_code error;
  const fs::path a = fs::weakly_canonical(fs::absolute(outer, error), error),
                 b = fs::weakly_canonical(fs::absolute(inner, error), error);
  return std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first == a.end();
}

} // namespace pentatron
