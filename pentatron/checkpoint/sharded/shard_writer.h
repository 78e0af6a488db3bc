/// One shard file of a checkpoint, written by one rank: an ordinary Safetensors file, and what the
/// manifest says about it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "pentatron/base/safetensors.h"
#include "pentatron/checkpoint/sharded/geometry.h"
#include "pentatron/checkpoint/sharded/manifest.h"

namespace pentatron::checkpoint {

/// "model_00003_of_00008.safetensors"
std::string shard_name(std::string_view kind, int64_t rank, int64_t ranks);

/// The boxes of one global tensor that a file is to hold.
struct EntrySpec {
  std::string name;
  SafeDtype dtype = SafeDtype::kF32;
  std::vector<int64_t> shape; ///< true and global
  std::vector<Box> boxes;     ///< in the order of the data
};

/// Entries first, then their data: the entries in any order, each from its beginning to its end in
/// pieces of any size. With one box an entry has the box's shape in the Safetensors header, else it
/// is flat. Checksums are computed on the way, and the system begins to write to the disk at once.
///
/// Throws CheckpointError, naming the file, for impossible entries and for whatever the system
/// refuses; a full disk is found before the first byte where the file system can reserve space.
class ShardFileWriter {
 public:
  ShardFileWriter(const std::filesystem::path& folder, const std::string& name,
                  std::vector<EntrySpec> entries, const SafeMetadata& metadata = {},
                  uint64_t chunk_bytes = kDefaultChunk);
  ~ShardFileWriter();
  ShardFileWriter(const ShardFileWriter&) = delete;
  ShardFileWriter& operator=(const ShardFileWriter&) = delete;

  /// The next bytes of the entry.
  void write(std::string_view entry, std::span<const std::byte> bytes);
  /// Makes the file durable. Returns its description, for the rank that commits the checkpoint.
  /// Throws CheckpointError if bytes are missing.
  std::string finish();

  uint64_t bytes() const { return description_.file.bytes; }

 private:
  struct Slot {
    uint64_t at = 0, end = 0; ///< bytes of the file
  };
  void put(uint64_t at, std::span<const std::byte> bytes);
  void add_to_chunk(uint64_t at, std::span<const std::byte> bytes);
  void end_run();
  void reserve();
  void start_writing_back();

  std::filesystem::path path_;
  FileDescription description_;
  std::map<std::string, Slot, std::less<>> slots_;
  int descriptor_ = -1;
  /// Neighbouring bytes of one chunk whose checksum is not yet in description_.
  struct {
    uint64_t begin = 0, end = 0;
    uint32_t crc = 0;
  } run_;
  uint64_t unsynced_begin_ = 0, unsynced_end_ = 0; ///< neighbouring bytes not yet sent to the disk
};

} // namespace pentatron::checkpoint
