/// The files of a saved run as files: names, checksums, which folder is whole, which is the newest.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "pentatron/base/json.h"

namespace pentatron::checkpoint {

/// "iter_0000100".
std::string folder_name(int64_t iteration);
/// The iteration of such a name; none for anything else.
std::optional<int64_t> folder_iteration(const std::string& name);

/// Adds the size and CRC-32C of every other file of the folder and the checksum of `state` itself,
/// and writes state.json.
void write_state(const std::filesystem::path& folder, Json state);
/// state.json, if its own checksum holds; else CheckpointError.
Json read_state(const std::filesystem::path& folder);

/// Removes folders up to `iteration` beyond the newest `keep`, and what a killed process left.
void prune(const std::filesystem::path& dir, int64_t iteration, int64_t keep);

} // namespace pentatron::checkpoint
