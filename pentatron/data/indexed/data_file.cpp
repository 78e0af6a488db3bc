#include "pentatron/data/indexed/data_file.h"

#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "pentatron/base/descriptors.h"
#include "pentatron/base/error.h"

namespace pentatron::data {

namespace {

constexpr size_t kBufferBytes = size_t{1} << 18;

[[noreturn]] void fail(std::string_view verb, const std::filesystem::path& path, int error) {
  raise<DataError>("{} cannot be {}: {}", path.string(), verb, std::strerror(error));
}

} // namespace

RandomAccessFile::RandomAccessFile(const std::filesystem::path& path) : path_(path) {
  // O_NONBLOCK: opening a FIFO must not hang; it changes nothing for a regular file.
  descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor_ < 0) require_descriptors(errno, path.native());
  if (descriptor_ < 0) fail("opened", path, errno);
  struct stat status = {};
  if (::fstat(descriptor_, &status) != 0 || !S_ISREG(status.st_mode)) {
    ::close(descriptor_);
    raise<DataError>("{} is not a regular file", path.string());
  }
  size_ = static_cast<uint64_t>(status.st_size);
}

RandomAccessFile::~RandomAccessFile() {
  ::close(descriptor_);
}

void RandomAccessFile::read(uint64_t offset, std::span<std::byte> out,
                            std::string_view field) const {
  if (out.size() > size_ || offset > size_ - out.size()) {
    raise<DataError>("{}: {} needs {} bytes at byte {}, but the file has {} bytes", path_.string(),
                     field, out.size(), offset, size_);
  }
  while (!out.empty()) {
    const ssize_t n = ::pread(descriptor_, out.data(), out.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      raise<DataError>("{}: {} cannot be read: {}", path_.string(), field, std::strerror(errno));
    }
    if (n == 0) {
      raise<DataError>("{} was truncated while it was in use: {} at byte {} is missing; the file "
                       "had {} bytes when it was opened",
                       path_.string(), field, offset, size_);
    }
    out = out.subspan(static_cast<size_t>(n));
    offset += static_cast<uint64_t>(n);
  }
}

AppendFile::AppendFile(const std::filesystem::path& path, uint64_t size) : path_(path) {
  descriptor_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (descriptor_ < 0) require_descriptors(errno, path.native());
  if (descriptor_ < 0) fail("created", path, errno);
  struct stat status = {};
  if (::fstat(descriptor_, &status) != 0 || static_cast<uint64_t>(status.st_size) < size) {
    ::close(descriptor_);
    raise<DataError>("{} has {} bytes, but {} were written to it", path.string(),
                     static_cast<int64_t>(status.st_size), size);
  }
  if (::ftruncate(descriptor_, static_cast<off_t>(size)) != 0) {
    const int error = errno;
    ::close(descriptor_);
    fail("cut", path, error);
  }
  written_ = size;
  buffer_.reserve(kBufferBytes);
}

AppendFile::~AppendFile() {
  ::close(descriptor_);
}

void AppendFile::write_through(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n =
        ::pwrite(descriptor_, bytes.data(), bytes.size(), static_cast<off_t>(written_));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) fail("written", path_, n < 0 ? errno : ENOSPC);
    bytes = bytes.subspan(static_cast<size_t>(n));
    written_ += static_cast<uint64_t>(n);
  }
}

void AppendFile::write(std::span<const std::byte> bytes) {
  if (buffer_.size() + bytes.size() > kBufferBytes) flush();
  if (bytes.size() >= kBufferBytes) return write_through(bytes);
  buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
}

void AppendFile::flush() {
  write_through(buffer_);
  buffer_.clear();
}

void AppendFile::sync() {
  flush();
  if (::fsync(descriptor_) != 0) fail("synced to the disk", path_, errno);
}

} // namespace pentatron::data
