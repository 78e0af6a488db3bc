/// The limits that Linux control groups put on this process, and how often the kernel has killed a
/// process because memory ran out.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

namespace pentatron {

/// Of the process's own group and of all groups around it, each of which counts the processes of
/// the groups inside it.
struct ControlGroup {
  std::optional<double> cpu_quota;           ///< processors that it may keep busy: the smallest
  std::optional<int64_t> memory_limit_bytes; ///< the smallest
  std::optional<int64_t> memory_free_bytes;  ///< the least that any limit leaves
  /// The least that may still be allocated under any limit: swap counts, and so does what the
  /// kernel can give back. None without a limit whose use is known.
  std::optional<int64_t> memory_room_bytes;
  int64_t memory_used_bytes = 0; ///< of the group with the smallest limit; without cached files
};

/// Reads /proc and /sys below `root`: version 2 of control groups and version 1, also side by side.
ControlGroup read_control_group(const std::filesystem::path& root = "/");

/// Processes that the kernel's out-of-memory killer has ended: of the control groups around this
/// process (version 1: of its own), else of the machine. None if Linux does not tell.
std::optional<int64_t> count_memory_kills(const std::filesystem::path& root = "/");

} // namespace pentatron
