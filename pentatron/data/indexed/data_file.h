/// Two ways to hold a large file open: read anywhere, and append with a buffer. Both name the file
/// in every error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>
#include <vector>

namespace pentatron::data {

/// A file that is read at any place, by any number of threads. Reading copies out of the page
/// cache: what another program does to the file becomes an error, never a signal.
class RandomAccessFile {
 public:
  /// Throws DataError if it is not a regular file that can be read.
  explicit RandomAccessFile(const std::filesystem::path& path);
  ~RandomAccessFile();
  RandomAccessFile(const RandomAccessFile&) = delete;
  RandomAccessFile& operator=(const RandomAccessFile&) = delete;

  const std::filesystem::path& path() const { return path_; }
  /// When it was opened.
  uint64_t size() const { return size_; }
  /// Fills `out` from `offset`. `field` names the data in messages. Throws DataError if the file
  /// ends before, now or when it was opened.
  void read(uint64_t offset, std::span<std::byte> out, std::string_view field) const;
  template <class T> void read(uint64_t offset, std::span<T> out, std::string_view field) const {
    read(offset, std::as_writable_bytes(out), field);
  }

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
  uint64_t size_ = 0;
};

/// A file that grows. Not for use by two threads at once.
class AppendFile {
 public:
  /// Opens or creates `path` and cuts it to `size` bytes. Throws DataError if it is shorter.
  AppendFile(const std::filesystem::path& path, uint64_t size);
  ~AppendFile();
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  const std::filesystem::path& path() const { return path_; }
  /// With what is still in the buffer.
  uint64_t size() const { return written_ + buffer_.size(); }
  void write(std::span<const std::byte> bytes);
  template <class T> void write_value(const T& value) {
    write(std::as_bytes(std::span(&value, 1)));
  }
  void flush();
  /// Flushes, and returns when the disk has it.
  void sync();

 private:
  void write_through(std::span<const std::byte> bytes);

  std::filesystem::path path_;
  int descriptor_ = -1;
  uint64_t written_ = 0;
  std::vector<std::byte> buffer_;
};

} // namespace pentatron::data
