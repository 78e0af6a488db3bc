#include "pentatron/checkpoint/sharded/shard_file.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include "pentatron/base/descriptors.h"
#include "pentatron/base/error.h"
#include "pentatron/base/text.h"

namespace pentatron::checkpoint {

ShardFile::ShardFile(const std::filesystem::path& path, const FileInfo& info) : path_(path) {
  // O_NONBLOCK: opening a FIFO must not hang; it changes nothing for a regular file.
  descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  struct stat status = {};
  if (descriptor_ < 0 || ::fstat(descriptor_, &status) != 0) {
    const int error = errno;
    if (descriptor_ >= 0) ::close(descriptor_);
    require_descriptors(error, path.native());
    raise<UnreadableFile>("cannot open {}: {}", path.string(), std::strerror(error));
  }
  if (!S_ISREG(status.st_mode) || static_cast<uint64_t>(status.st_size) != info.bytes) {
    ::close(descriptor_);
    raise<CheckpointError>("{} is corrupted: it has {} bytes instead of {}", path.string(),
                           static_cast<int64_t>(status.st_size), info.bytes);
  }
}

ShardFile::~ShardFile() {
  ::close(descriptor_);
}

void ShardFile::read(uint64_t at, std::span<std::byte> bytes) const {
  while (!bytes.empty()) {
    const ssize_t n = ::pread(descriptor_, bytes.data(), bytes.size(), static_cast<off_t>(at));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      const std::string text =
          fmt::format("cannot read {}: {}", path_.string(), std::strerror(errno));
      if (errno == EIO) throw CheckpointError(text); // the disk has lost it
      throw UnreadableFile(text);
    }
    if (n == 0)
      raise<CheckpointError>("{} was truncated while it was being read: byte {} is missing",
                             path_.string(), at);
    bytes = bytes.subspan(static_cast<size_t>(n));
    at += static_cast<uint64_t>(n);
  }
}

std::string tensors_between(const FileInfo& info, uint64_t begin, uint64_t end) {
  // Entries by place; one ends where the next begins.
  std::vector<std::pair<uint64_t, const std::string*>> places;
  for (const auto& [name, entry] : info.entries) places.emplace_back(entry.begin, &name);
  std::ranges::sort(places);
  constexpr size_t kShown = 8;
  std::string tensors;
  size_t count = 0;
  for (size_t i = 0; i < places.size(); ++i) {
    const uint64_t next = i + 1 < places.size() ? places[i + 1].first : info.bytes;
    if (places[i].first >= end || next <= begin) continue;
    if (++count <= kShown)
      tensors += fmt::format("{}{}", tensors.empty() ? "" : ", ", excerpt(*places[i].second, 200));
  }
  if (count > kShown) tensors += fmt::format(" and {} more", count - kShown);
  if (info.entries.empty()) return "no tensor";
  return tensors.empty() ? "the header" : tensors;
}

std::string damaged_chunk(const std::string& file, const FileInfo& info, size_t chunk) {
  const uint64_t begin = chunk * info.chunk_bytes;
  const uint64_t end = std::min(info.bytes, begin + info.chunk_bytes);
  return fmt::format(
      "{} is corrupted: the checksum of chunk {} (bytes {} to {}, in {}) does not match", file,
      chunk, begin, end, tensors_between(info, begin, end));
}

} // namespace pentatron::checkpoint
