/// Free space of a disk.
#pragma once

#include <filesystem>
#include <optional>

namespace pentatron {

/// Free bytes of the disk that has the folder, or its nearest parent that exists; none if that is
/// unknown.
std::optional<double> free_disk(const std::filesystem::path& folder);

} // namespace pentatron
