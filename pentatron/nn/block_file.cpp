#include "pentatron/nn/block_file.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "pentatron/base/descriptors.h"
#include "pentatron/base/error.h"

namespace pentatron::nn {

BlockFile::BlockFile(const std::filesystem::path& folder) : folder_(folder) {
  std::error_code created;
  std::filesystem::create_directories(folder, created);
  file_ = ::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (file_ < 0) { // a file system without it
    std::string name = (folder / "pentatron-offload-XXXXXX").string();
    file_ = ::mkostemp(name.data(), O_CLOEXEC);
    if (file_ >= 0) ::unlink(name.c_str());
  }
  if (file_ >= 0) return;
  const int reason = created ? created.value() : errno;
  require_descriptors(reason, folder.native());
  raise<Error>("offload.dir={} cannot be written: {}\n  try: offload.dir=/var/tmp", folder.string(),
               std::strerror(reason));
}

BlockFile::~BlockFile() {
  ::close(file_);
}

int64_t BlockFile::take(size_t bytes) {
  const std::lock_guard lock(mutex_);
  std::vector<int64_t>& free = free_[bytes];
  if (free.empty()) return std::exchange(end_, end_ + static_cast<int64_t>(bytes));
  const int64_t offset = free.back();
  free.pop_back();
  return offset;
}

void BlockFile::give_back(size_t bytes, int64_t offset) {
  const std::lock_guard lock(mutex_);
  free_[bytes].push_back(offset);
}

void BlockFile::write(const void* data, size_t bytes, int64_t offset) const {
  move(static_cast<char*>(const_cast<void*>(data)), bytes, offset, "write to", ::pwrite);
}

void BlockFile::read(void* data, size_t bytes, int64_t offset) const {
  move(static_cast<char*>(data), bytes, offset, "read from", ::pread);
}

void BlockFile::reserve(size_t bytes, int64_t offset) const {
  int reason = EINTR;
  while (reason == EINTR)
    reason = ::posix_fallocate(file_, offset, static_cast<off_t>(bytes)); // returns the error
  if (reason != 0) fail("write to", reason);
}

void* BlockFile::map(size_t bytes, int64_t offset) const {
  void* const data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_, offset);
  if (data == MAP_FAILED) fail("map", errno);
  return data;
}

void BlockFile::drop_pages(const void* data, size_t bytes) {
  const auto begin = (reinterpret_cast<uintptr_t>(data) + kPage - 1) / kPage * kPage,
             end = (reinterpret_cast<uintptr_t>(data) + bytes) / kPage * kPage;
  if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

template <class Call>
void BlockFile::move(char* data, size_t bytes, int64_t offset, const char* what, Call call) const {
  while (bytes > 0) {
    const ssize_t n = call(file_, data, std::min<size_t>(bytes, size_t{1} << 30), offset);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) fail(what, n < 0 ? errno : EIO);
    data += n;
    bytes -= static_cast<size_t>(n);
    offset += n;
  }
}

void BlockFile::fail(const char* what, int reason) const {
  raise<Error>("cannot {} offload.dir={}: {}\n  try: offload.dir=FOLDER on a larger disk", what,
               folder_.string(), std::strerror(reason));
}

} // namespace pentatron::nn
