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
#include <string>
#include <vector>

#include "pentatron/checkpoint/sharded/manifest.h"

namespace pentatron::checkpoint {

/// Writes `count` parity files for the shards of the manifest, durably, and lists them in it.
/// Throws CheckpointError for what cannot be read or written, or a count beyond kMaxParity.
void write_parity(const std::filesystem::path& folder, Manifest& manifest, int64_t count);

struct RepairReport {
  std::vector<std::string> repaired; ///< names of files that are as written again
  std::vector<std::string> lost;     ///< what is beyond repair, each with the reason
};

/// Rebuilds damaged and missing shards and parity files of a checkpoint, and its small files from
/// their copies (spares.h), each of them whole or not at all. Throws CheckpointError if the
/// manifest and all its copies are damaged.
RepairReport repair_checkpoint(const std::filesystem::path& folder);

} // namespace pentatron::checkpoint
