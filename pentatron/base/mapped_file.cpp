#include "pentatron/base/mapped_file.h"

#include <cerrno>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "pentatron/base/descriptors.h"
#include "pentatron/base/error.h"

namespace pentatron {

MappedFile::MappedFile(const std::filesystem::path& file, Access access) : path_(file) {
  // O_NONBLOCK: opening a FIFO must not hang; it changes nothing for a regular file.
  const int descriptor = ::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) {
    require_descriptors(errno, file.native());
    raise<CannotOpen>("cannot open {}: {}", file.string(), std::strerror(errno));
  }
  struct stat status = {};
  if (::fstat(descriptor, &status) != 0 || !S_ISREG(status.st_mode)) {
    ::close(descriptor);
    raise<DataError>("{} is not a regular file", file.string());
  }
  size_ = static_cast<size_t>(status.st_size);
  if (size_ > 0) {
    // NORESERVE: what is never written to needs no memory beside the file.
    const bool writable = access == Access::kPrivate;
    void* data = ::mmap(nullptr, size_, PROT_READ | (writable ? PROT_WRITE : 0),
                        MAP_PRIVATE | (writable ? MAP_NORESERVE : 0), descriptor, 0);
    if (data == MAP_FAILED) {
      const int error = errno;
      ::close(descriptor);
      raise<CannotOpen>("cannot map {} ({} bytes) into memory: {}", file.string(), size_,
                        std::strerror(error));
    }
    data_ = static_cast<const std::byte*>(data);
    if (access == Access::kSequential || access == Access::kRandom) {
      ::madvise(data, size_, access == Access::kSequential ? MADV_SEQUENTIAL : MADV_RANDOM);
    }
  }
  if (access == Access::kPrivate) {
    ::close(descriptor);
  } else {
    descriptor_ = descriptor;
  }
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
  if (descriptor_ >= 0) ::close(descriptor_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)),
      data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

void MappedFile::check_size() const {
  struct stat status = {};
  if (::fstat(descriptor_, &status) != 0 || static_cast<size_t>(status.st_size) != size_) {
    raise<DataError>("{} changed while it was in use: {} bytes when opened, {} now", path_.string(),
                     size_, static_cast<int64_t>(status.st_size));
  }
}

bool is_file(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(path, ignored);
}

void release_pages(std::span<const std::byte> mapped) {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = (reinterpret_cast<uintptr_t>(mapped.data()) + page - 1) / page * page;
  const auto end = (reinterpret_cast<uintptr_t>(mapped.data()) + mapped.size()) / page * page;
  if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

} // namespace pentatron
