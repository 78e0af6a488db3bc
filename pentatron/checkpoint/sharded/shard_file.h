/// One shard file open for reading, by pread: a file that shrinks meanwhile is an error.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "pentatron/base/error.h"
#include "pentatron/checkpoint/sharded/manifest.h"

namespace pentatron::checkpoint {

/// This machine cannot read a file at the moment (no permission, too many open files, a mount that
/// is not there), which says nothing about its content.
class UnreadableFile : public CheckpointError {
 public:
  using CheckpointError::CheckpointError;
};

class ShardFile {
 public:
  /// Throws UnreadableFile if it cannot be opened, CheckpointError if it has not the size that
  /// `info` says.
  ShardFile(const std::filesystem::path& path, const FileInfo& info);
  ~ShardFile();
  ShardFile(const ShardFile&) = delete;
  ShardFile& operator=(const ShardFile&) = delete;

  /// The bytes from `at` on. Throws CheckpointError.
  void read(uint64_t at, std::span<std::byte> bytes) const;

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
};

/// The first few tensors that lie in these bytes of a file, as text; "the header" if none does,
/// "no tensor" of a file that has none.
std::string tensors_between(const FileInfo& info, uint64_t begin, uint64_t end);

/// The sentence about a chunk that is not as written: file, chunk, its bytes and the tensors in it.
std::string damaged_chunk(const std::string& file, const FileInfo& info, size_t chunk);

} // namespace pentatron::checkpoint
