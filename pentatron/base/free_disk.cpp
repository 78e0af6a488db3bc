#include "pentatron/base/free_disk.h"

namespace pentatron {

std::optional<double> free_disk(std::filesystem::path folder) {
  std::error_code error;
  folder = std::filesystem::absolute(folder, error);
  while (!error && !std::filesystem::exists(folder, error) && folder.has_relative_path())
    folder = folder.parent_path();
  const std::filesystem::space_info space = std::filesystem::space(folder, error);
  // What is no folder, or lies on no disk, is told when a file is made in it.
  if (error || space.capacity == 0) return std::nullopt;
  return static_cast<double>(space.available);
}

} // namespace pentatron
