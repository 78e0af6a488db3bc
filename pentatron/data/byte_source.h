/// Reads a file from start to end in pieces and decompresses gzip or zstd. Memory is bounded for
/// files of any size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

namespace pentatron::data {

/// The content of a file as a stream of bytes. Not for use by two threads at once.
class ByteSource {
 public:
  virtual ~ByteSource() = default;

  /// Fills `buffer` with the next bytes; fewer than `capacity` only at the end, 0 at the end.
  /// Throws DataError if the file cannot be read, or if its compressed stream is damaged or cut
  /// off: after all that could be decoded before the damage has been handed out.
  virtual size_t read(char* buffer, size_t capacity) = 0;

  /// How much of the file, as it lies on the disk, was read so far.
  virtual int64_t consumed_bytes() const { return 0; }
};

enum class Compression : uint8_t { kNone, kGzip, kZstd };

/// The compression that the file name implies: ".gz" is gzip, ".zst" and ".zstd" are zstd.
Compression compression_of(const std::filesystem::path& path);

/// Opens a file: plain, gzip (also of several members) or zstd (also of several frames). A file
/// without one of the endings is recognised by its first bytes; one with the ending must be of that
/// kind. Throws DataError if the file cannot be opened.
std::unique_ptr<ByteSource> open_source(const std::filesystem::path& path);

} // namespace pentatron::data
