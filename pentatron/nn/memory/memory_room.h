/// Whether the control groups around this process leave room for a new large block.
///
/// Without this, a process that touches memory over a limit is killed by the kernel, which leaves
/// no message. The rule: a block is refused only if it is larger than the room by a look at the
/// groups that was made for it. What was allocated since the last look counts only for when to
/// look again: the kernel counts memory when it is touched, and may have counted it already.
#pragma once

#include <cstddef>
#include <filesystem>

namespace pentatron::nn {

/// Looks for limits now; if there are none, room_for() never looks. Call it at the start of the
/// program. `root`: as in read_control_group().
void watch_memory_room(const std::filesystem::path& root = "/");

/// False if a new block of `bytes` would pass a limit. Reads the files of the groups if 50 ms have
/// passed or 64 MiB were allocated since the last time, and before it says no.
bool room_for(size_t bytes);

/// Throws the error of torch for an allocation that failed if there is no room_for() it.
void require_room(size_t bytes);

} // namespace pentatron::nn
