#include "pentatron/checkpoint/container/reader.h"

#include <algorithm>
#include <cstring>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "pentatron/base/crc32c.h"
#include "pentatron/base/error.h"
#include "pentatron/base/nearest.h"
#include "pentatron/base/text.h"

namespace pentatron::checkpoint {

namespace fs = std::filesystem;

namespace {

/// Chunks up to this size are read at once, larger ones (format 1) in blocks of it.
constexpr uint64_t kMaxBlock = uint64_t{4} << 20;
constexpr size_t kMaxOpen = 256;

} // namespace

struct CheckpointReader::OpenFile {
  const std::string* name = nullptr;
  const FileInfo* info = nullptr;
  std::unique_ptr<ShardFile> file;
  std::vector<bool> checked; ///< by chunk
};

CheckpointReader::CheckpointReader(const fs::path& folder)
    : folder_(folder), manifest_(read_manifest(folder)) {
  for (const auto& [name, info] : manifest_.files) {
    files_.push_back(std::make_unique<OpenFile>());
    OpenFile* const file = files_.back().get();
    file->name = &name;
    file->info = &info;
    file->checked.resize(info.num_chunks());
    for (const auto& [tensor, entry] : info.entries) {
      const TensorInfo& of = manifest_.tensors.find(tensor)->second;
      uint64_t begin = entry.begin;
      for (const Box& box : entry.boxes) {
        sources_[tensor].push_back({.file = file, .box = &box, .begin = begin});
        begin += static_cast<uint64_t>(numel(box)) * size_of(of.dtype);
      }
    }
  }
}

CheckpointReader::~CheckpointReader() = default;

const TensorInfo& CheckpointReader::info(std::string_view name) const {
  if (const auto it = manifest_.tensors.find(name); it != manifest_.tensors.end())
    return it->second;
  std::vector<std::string> names;
  for (const auto& [known, info] : manifest_.tensors) names.push_back(known);
  const std::string near = nearest(name, names);
  raise<CheckpointError>("{} has no tensor '{}'{}{}", folder_.string(), excerpt(name),
                         near.empty() ? "" : "\n  try: ", excerpt(near));
}

std::vector<std::string> CheckpointReader::missing(std::span<const std::string> names) const {
  std::vector<std::string> out;
  std::ranges::copy_if(names, std::back_inserter(out),
                       [&](const std::string& name) { return !contains(name); });
  return out;
}

std::vector<std::string> CheckpointReader::unexpected(std::span<const std::string> names) const {
  const std::set<std::string_view> known(names.begin(), names.end());
  std::vector<std::string> out;
  for (const auto& [name, info] : manifest_.tensors) {
    if (!known.contains(name)) out.push_back(name);
  }
  return out;
}

std::vector<std::byte> CheckpointReader::read(std::string_view name) {
  const TensorInfo& tensor = info(name);
  std::vector<std::byte> bytes(static_cast<size_t>(tensor.bytes()));
  read(name, whole_box(tensor.shape), bytes);
  return bytes;
}

void CheckpointReader::read(std::string_view name, const Box& box, std::span<std::byte> target) {
  read(name, box, target, row_major_strides(box.size));
}

void CheckpointReader::read(std::string_view name, const Box& box, std::span<std::byte> target,
                            std::span<const int64_t> strides) {
  const TensorInfo& tensor = info(name);
  const size_t element = size_of(tensor.dtype);
  if (!fits(box, tensor.shape))
    raise<CheckpointError>("box {} is outside of {} [{}]", to_text(box), excerpt(name),
                           fmt::join(tensor.shape, ", "));
  if (numel(box) == 0) return;
  PT_DCHECK(strides.size() == box.size.size());
  int64_t last = 0;
  for (size_t d = 0; d < strides.size(); ++d) {
    PT_DCHECK(strides[d] >= 0);
    last += (box.size[d] - 1) * strides[d];
  }
  if (target.size() < static_cast<size_t>(last + 1) * element)
    raise<CheckpointError>("box {} of {} does not fit into {} bytes", to_text(box), excerpt(name),
                           target.size());
  try {
    for (const Source& source : sources_.find(name)->second) {
      if (const auto part = intersect(*source.box, box))
        read_part(source, *part, box, target.data(), strides, element);
    }
  } catch (const CheckpointError& error) {
    pieces_.clear();
    raise<CheckpointError>("reading {}: {}", excerpt(name, 200), error.what());
  }
}

void CheckpointReader::read_part(const Source& source, const Box& part, const Box& box,
                                 std::byte* target, std::span<const int64_t> strides,
                                 size_t element) {
  OpenFile& file = *source.file;
  const uint64_t block = std::min(file.info->chunk_bytes, kMaxBlock);
  Runs runs(part, *source.box, box, strides);
  pieces_.clear();
  for (CopyRun run; runs.next(run);) {
    uint64_t at = source.begin + static_cast<uint64_t>(run.source) * element;
    uint64_t left = static_cast<uint64_t>(run.count) * element;
    std::byte* to = target + static_cast<size_t>(run.target) * element;
    while (left > 0) { // all pieces at hand lie in one block
      const uint64_t size = std::min(left, block - at % block);
      if (!pieces_.empty() && pieces_.front().at / block != at / block) read_pieces(file);
      pieces_.push_back({.at = at, .size = size, .target = to});
      at += size;
      to += size;
      left -= size;
    }
  }
  read_pieces(file);
}

const ShardFile& CheckpointReader::open(OpenFile& file) {
  if (!file.file) {
    if (num_open_ >= kMaxOpen) {
      for (const auto& other : files_) other->file.reset();
      num_open_ = 0;
    }
    file.file = std::make_unique<ShardFile>(folder_ / *file.name, *file.info);
    ++num_open_;
  }
  return *file.file;
}

void CheckpointReader::load(OpenFile& file, uint64_t begin, uint64_t end) {
  if (buffered_ == &file && buffer_begin_ <= begin && end <= buffer_end_) return;
  buffered_ = nullptr; // until it is whole
  buffer_.resize(static_cast<size_t>(std::max<uint64_t>(end - begin, buffer_.size())));
  open(file).read(begin, std::span(buffer_).first(static_cast<size_t>(end - begin)));
  bytes_read_ += end - begin;
  buffered_ = &file;
  buffer_begin_ = begin;
  buffer_end_ = end;
}

void CheckpointReader::check_chunk(OpenFile& file, size_t chunk,
                                   std::span<const std::byte> bytes) const {
  if (crc32c(bytes) != file.info->crcs[chunk])
    throw CheckpointError(damaged_chunk((folder_ / *file.name).string(), *file.info, chunk));
  file.checked[chunk] = true;
}

void CheckpointReader::stream_chunk(OpenFile& file, size_t chunk) {
  const uint64_t begin = chunk * file.info->chunk_bytes;
  const uint64_t end = std::min(file.info->bytes, begin + file.info->chunk_bytes);
  uint32_t crc = 0;
  for (uint64_t at = begin; at < end;) {
    const uint64_t next = std::min(end, at + kMaxBlock);
    load(file, at, next);
    crc = crc32c(std::span(buffer_).first(static_cast<size_t>(next - at)), crc);
    at = next;
  }
  if (crc != file.info->crcs[chunk])
    throw CheckpointError(damaged_chunk((folder_ / *file.name).string(), *file.info, chunk));
  file.checked[chunk] = true;
}

/// Reads pieces_, which lie in one block in ascending order, and empties it.
void CheckpointReader::read_pieces(OpenFile& file) {
  if (pieces_.empty()) return;
  const uint64_t chunk_bytes = file.info->chunk_bytes;
  const auto chunk = static_cast<size_t>(pieces_.front().at / chunk_bytes);
  const uint64_t begin = chunk * chunk_bytes;
  const uint64_t end = std::min(file.info->bytes, begin + chunk_bytes);
  const bool one_piece = pieces_.size() == 1;
  const Piece& first = pieces_.front();
  if (!file.checked[chunk] && one_piece && first.size == end - begin) { // straight to its place
    const std::span<std::byte> target(first.target, static_cast<size_t>(first.size));
    open(file).read(begin, target);
    bytes_read_ += first.size;
    check_chunk(file, chunk, target);
    pieces_.clear();
    return;
  }
  if (!file.checked[chunk]) {
    if (end - begin > kMaxBlock) {
      stream_chunk(file, chunk);
    } else {
      load(file, begin, end);
      check_chunk(file, chunk,
                  std::span(buffer_).subspan(static_cast<size_t>(begin - buffer_begin_),
                                             static_cast<size_t>(end - begin)));
    }
  }
  const uint64_t last = pieces_.back().at + pieces_.back().size;
  const bool at_hand = buffered_ == &file && buffer_begin_ <= first.at && last <= buffer_end_;
  if (one_piece && !at_hand) {
    open(file).read(first.at, {first.target, static_cast<size_t>(first.size)});
    bytes_read_ += first.size;
  } else {
    load(file, first.at, last);
    for (const Piece& piece : pieces_)
      std::memcpy(piece.target, buffer_.data() + (piece.at - buffer_begin_),
                  static_cast<size_t>(piece.size));
  }
  pieces_.clear();
}

} // namespace pentatron::checkpoint
