/// A file mapped into memory.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string_view>

#include "pentatron/base/error.h"

namespace pentatron {

/// The file cannot be opened or mapped at the moment; its content may be intact.
class CannotOpen : public DataError {
 public:
  using DataError::DataError;
};

/// Move-only owner of the mapping; spans of it are valid while it lives.
/// A file that another program shortens would raise SIGBUS on access: call check_size() before long
/// reads.
class MappedFile {
 public:
  /// kPrivate: the memory may be written to, which changes nothing but this mapping; it keeps no
  /// descriptor, so there may be many, and check_size() is not for it.
  enum class Access { kNormal, kSequential, kRandom, kPrivate };

  /// Throws DataError if `file` is not a regular file or cannot be read, OutOfDescriptors if that
  /// is not its fault. An empty file gives an empty span.
  explicit MappedFile(const std::filesystem::path& file, Access access = Access::kNormal);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  std::string_view text() const { return {reinterpret_cast<const char*>(data_), size_}; }
  size_t size() const { return size_; }
  const std::filesystem::path& path() const { return path_; }

  /// Throws DataError if the size of the file has changed since it was mapped.
  void check_size() const;

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

/// Whether `path` is a regular file; false where that cannot be found out.
bool is_file(const std::filesystem::path& path);

/// Tells the system that the bytes of a mapped file are not needed soon: they stop counting as
/// memory of this process, and are read again when touched.
void release_pages(std::span<const std::byte> mapped);

} // namespace pentatron
