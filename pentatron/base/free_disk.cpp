#include "pentatron/base/free_disk.h"

#include "pentatron/base/paths.h"

namespace pentatron {

std::optional<double> free_disk(const std::filesystem::path& folder) {
  std::error_code error;
  const std::filesystem::space_info space = std::filesystem::space(nearest_existing(folder), error);
  // What is no folder, or lies on no disk, is told when a file is made in it.
  if (error || space.capacity == 0) return std::nullopt;
  return static_cast<double>(space.available);
}

} // namespace pentatron
