/// Parity files: a checkpoint with K of them can lose any K of its shards (of each group of up to
/// 128) and still be rebuilt.
///
/// Byte by byte, parity file j of a group is the sum over its shards i of c(j, i) times shard i in
/// GF(256) (polynomial 0x11d); shorter shards have zeros behind them. c(j, i) = (K + i) / (j xor
/// (K + i)), a Cauchy matrix whose columns are scaled so that file 0 is the plain XOR: every square
/// part of it can be inverted. Source: Blomer et al. 1995, "An XOR-Based Erasure-Resilient Coding
/// Scheme", ICSI TR-95-048.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "pentatron/checkpoint/sharded/manifest.h"

namespace pentatron::checkpoint {

/// Writes `count` parity files for the shards of the manifest, durably, and lists them in it.
/// Throws CheckpointError for what cannot be read or written, or a count beyond kMaxParity.
void write_parity(const std::filesystem::path& folder, Manifest& manifest, int64_t count);

/// Like write_parity(), divided over `of` writers, of which this is number `part`: each reads and
/// writes a range of bytes of every file, so that every byte is read once. `manifest` needs the
/// names and sizes of the files. Returns the checksums of the written data, as text for
/// add_parity(), when the data is durable. Calls `progress` repeatedly.
std::string write_parity_part(const std::filesystem::path& folder, const Manifest& manifest,
                              int64_t count, int64_t part, int64_t of,
                              const std::function<void()>& progress = {});
/// Lists the parity files in the manifest from what the writers returned, in their order. Throws
/// CheckpointError if a file has the wrong size.
void add_parity(const std::filesystem::path& folder, Manifest& manifest, int64_t count,
                std::span<const std::string> parts);

struct RepairReport {
  std::vector<std::string> repaired; ///< names of files that are as written again
  std::vector<std::string> lost;     ///< what is beyond repair, each with the reason
};

/// Rebuilds damaged and missing shards and parity files of a checkpoint, and its small files from
/// their copies (spares.h), each of them whole or not at all. Throws CheckpointError if the
/// manifest and all its copies are damaged.
RepairReport repair_checkpoint(const std::filesystem::path& folder);

} // namespace pentatron::checkpoint
