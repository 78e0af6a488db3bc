/// A file in `offload.dir` without a name: it is deleted when it is closed or the process ends.
/// The space of freed blocks is reused.
///
/// Throws Error with the key where the folder cannot be written or the disk is full. take() and
/// give_back() may be called by any thread, write() and read() at once for different blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <mutex>
#include <vector>

namespace pentatron::nn {

class BlockFile {
 public:
  explicit BlockFile(const std::filesystem::path& folder);
  ~BlockFile();
  BlockFile(const BlockFile&) = delete;

  /// The place of a block.
  int64_t take(size_t bytes);
  void give_back(size_t bytes, int64_t offset);
  void write(const void* data, size_t bytes, int64_t offset) const;
  void read(void* data, size_t bytes, int64_t offset) const;

  static constexpr size_t kPage = 4096;
  /// Takes disk space now for a block at a multiple of kPage; it holds zeros.
  void reserve(size_t bytes, int64_t offset) const;
  /// The block as memory, until munmap().
  void* map(size_t bytes, int64_t offset) const;
  /// Of mapped memory: its pages are not counted as the process' until they are touched again.
  static void drop_pages(const void* data, size_t bytes);

 private:
  template <class Call>
  void move(char* data, size_t bytes, int64_t offset, const char* what, Call call) const;
  [[noreturn]] void fail(const char* what, int reason) const;

  std::filesystem::path folder_;
  int file_ = -1;
  std::mutex mutex_;
  std::map<size_t, std::vector<int64_t>> free_; // by size
  int64_t end_ = 0;
};

} // namespace pentatron::nn
