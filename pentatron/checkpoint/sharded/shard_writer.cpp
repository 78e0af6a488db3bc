#include "pentatron/checkpoint/sharded/shard_writer.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "pentatron/base/crc32c.h"
#include "pentatron/base/descriptors.h"
#include "pentatron/base/error.h"
#include "pentatron/base/format.h"
#include "pentatron/base/text.h"

namespace pentatron::checkpoint {

namespace {

/// Bytes between a checksum and the copy into the page cache: they stay in the processor's cache.
/// Writes end at multiples of it, so that the page cache takes large pages: who maps the file next
/// has a hundredth of the page faults.
constexpr uint64_t kWriteBlock = uint64_t{2} << 20;
/// Bytes after which the system is told to begin writing to the disk.
constexpr uint64_t kWriteBack = uint64_t{8} << 20;

[[noreturn]] void fail(std::string_view verb, const std::filesystem::path& path, uint64_t bytes,
                       int error) {
  std::string more;
  struct statvfs disk = {};
  if ((error == ENOSPC || error == EDQUOT) && ::statvfs(path.parent_path().c_str(), &disk) == 0) {
    const uint64_t free = uint64_t{disk.f_bavail} * disk.f_frsize;
    more = fmt::format(
        "; it needs {}{}\n  try: checkpoint.save on another disk, or fewer "
        "checkpoints (checkpoint.keep)",
        format_bytes(static_cast<double>(bytes)),
        free < bytes // else a quota, or another program has just freed some
            ? fmt::format(", but only {} are free", format_bytes(static_cast<double>(free)))
            : "");
  }
  raise<CheckpointError>("{} cannot be {}: {}{}", path.string(), verb, std::strerror(error), more);
}

} // namespace

std::string shard_name(std::string_view kind, int64_t rank, int64_t ranks) {
  return fmt::format("{}_{:05d}_of_{:05d}.safetensors", kind, rank, ranks);
}

ShardFileWriter::ShardFileWriter(const std::filesystem::path& folder, const std::string& name,
                                 std::vector<EntrySpec> entries, const SafeMetadata& metadata,
                                 uint64_t chunk_bytes)
    : path_(folder / name) {
  if (!is_shard_name(name)) raise<CheckpointError>("'{}' is not a valid shard name", excerpt(name));
  description_.name = name;
  FileInfo& file = description_.file;
  file.chunk_bytes = chunk_bytes;
  std::vector<SafeTensorSpec> specs;
  for (EntrySpec& entry : entries) {
    if (!is_tensor_name(entry.name) || entry.shape.size() > kMaxDims || !checked_numel(entry.shape))
      raise<CheckpointError>("cannot write '{}' [{}] to {}: invalid name or shape",
                             excerpt(entry.name), fmt::join(entry.shape, ", "), path_.string());
    int64_t count = 0;
    for (const Box& box : entry.boxes) {
      if (!fits(box, entry.shape))
        raise<CheckpointError>("box {} of {} is outside its shape [{}]", to_text(box),
                               excerpt(entry.name), fmt::join(entry.shape, ", "));
      count += numel(box);
    }
    specs.push_back({.name = entry.name,
                     .dtype = entry.dtype,
                     .shape = entry.boxes.size() == 1 ? entry.boxes[0].size : std::vector{count}});
  }
  const SafetensorsLayout layout = layout_safetensors(std::move(specs), metadata, path_.string());
  for (EntrySpec& entry : entries) {
    const SafetensorsLayout::Place place = layout.places.find(entry.name)->second;
    slots_[entry.name] = {.at = place.begin, .end = place.begin + place.size};
    file.entries[entry.name] = {.begin = place.begin, .boxes = std::move(entry.boxes)};
    description_.tensors[entry.name] = {.dtype = entry.dtype, .shape = std::move(entry.shape)};
  }
  file.bytes = layout.bytes;
  file.crcs.resize(file.num_chunks());
  descriptor_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (descriptor_ < 0) require_descriptors(errno, path_.native());
  if (descriptor_ < 0) fail("created", path_, file.bytes, errno);
  try {
    reserve();
    put(0, std::as_bytes(std::span(layout.head)));
  } catch (...) {
    ::close(descriptor_);
    throw;
  }
}

ShardFileWriter::~ShardFileWriter() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void ShardFileWriter::reserve() {
  if (::fallocate(descriptor_, 0, 0, static_cast<off_t>(bytes())) == 0) return;
  if (errno == ENOSPC || errno == EDQUOT || errno == EFBIG || errno == EIO)
    fail("written", path_, bytes(), errno); // else the file system does not reserve
}

void ShardFileWriter::write(std::string_view entry, std::span<const std::byte> bytes) {
  const auto it = slots_.find(entry);
  if (it == slots_.end())
    raise<CheckpointError>("{} was not declared for {}", excerpt(entry), path_.string());
  Slot& slot = it->second;
  if (bytes.size() > slot.end - slot.at)
    raise<CheckpointError>("{} of {} was given {} bytes, but {} are missing", excerpt(entry),
                           path_.string(), bytes.size(), slot.end - slot.at);
  put(slot.at, bytes);
  slot.at += bytes.size();
}

void ShardFileWriter::put(uint64_t at, std::span<const std::byte> bytes) {
  PT_DCHECK(descriptor_ >= 0);
  if (at != unsynced_end_) {
    start_writing_back();
    unsynced_begin_ = unsynced_end_ = at;
  }
  while (!bytes.empty()) {
    const auto block = bytes.first(std::min<size_t>(bytes.size(), kWriteBlock - at % kWriteBlock));
    add_to_chunk(at, block);
    for (auto left = block; !left.empty();) {
      const ssize_t n = ::pwrite(descriptor_, left.data(), left.size(), static_cast<off_t>(at));
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) fail("written", path_, this->bytes(), n < 0 ? errno : ENOSPC);
      left = left.subspan(static_cast<size_t>(n));
      at += static_cast<uint64_t>(n);
    }
    bytes = bytes.subspan(block.size());
    unsynced_end_ = at;
    if (unsynced_end_ - unsynced_begin_ >= kWriteBack) start_writing_back();
  }
}

void ShardFileWriter::add_to_chunk(uint64_t at, std::span<const std::byte> bytes) {
  const uint64_t chunk = description_.file.chunk_bytes;
  while (!bytes.empty()) {
    if (at != run_.end || at % chunk == 0) {
      end_run();
      run_ = {.begin = at, .end = at, .crc = 0};
    }
    const auto part = bytes.first(std::min<size_t>(bytes.size(), chunk - at % chunk));
    run_.crc = crc32c(part, run_.crc);
    at += part.size();
    run_.end = at;
    bytes = bytes.subspan(part.size());
  }
}

void ShardFileWriter::end_run() {
  if (run_.begin == run_.end) return;
  FileInfo& file = description_.file;
  const uint64_t chunk = run_.begin / file.chunk_bytes;
  const uint64_t end = std::min(file.bytes, (chunk + 1) * file.chunk_bytes);
  file.crcs[chunk] ^= crc32c_combine(run_.crc, 0, end - run_.end);
  run_ = {};
}

/// Only a hint: fsync at the end has less to wait for.
void ShardFileWriter::start_writing_back() {
  if (unsynced_end_ > unsynced_begin_)
    ::sync_file_range(descriptor_, static_cast<off_t>(unsynced_begin_),
                      static_cast<off_t>(unsynced_end_ - unsynced_begin_), SYNC_FILE_RANGE_WRITE);
  unsynced_begin_ = unsynced_end_;
}

std::string ShardFileWriter::finish() {
  PT_DCHECK(descriptor_ >= 0);
  for (const auto& [name, slot] : slots_) {
    if (slot.at != slot.end)
      raise<CheckpointError>("the last {2} bytes of {0} in {1} are missing", excerpt(name),
                             path_.string(), slot.end - slot.at);
  }
  end_run();
  if (::fsync(descriptor_) != 0) fail("synced to disk", path_, bytes(), errno);
  if (::close(std::exchange(descriptor_, -1)) != 0) fail("closed", path_, bytes(), errno);
  return to_text(description_);
}

} // namespace pentatron::checkpoint
