/// Folders of format 1, which one rank wrote: iter_0000100/ with state.json, model.safetensors and
/// optimizer.safetensors. Only read.
#pragma once

#include <filesystem>

#include "pentatron/checkpoint/sharded/manifest.h"

namespace pentatron::checkpoint {

inline constexpr const char* kFormat1Name = "state.json";

/// As a manifest: each file is one chunk, and the counters of state.json are its state. Throws
/// CheckpointError if state.json or the header of a file is damaged.
Manifest read_format1(const std::filesystem::path& folder);

/// The bytes of a file of limited size; CheckpointError if it cannot be read or is larger.
std::string read_small_file(const std::filesystem::path& file, size_t max_bytes);

} // namespace pentatron::checkpoint
