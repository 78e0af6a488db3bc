#include "pentatron/checkpoint/sharded/reader.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "pentatron/base/crc32c.h"
#include "pentatron/base/error.h"
#include "pentatron/base/nearest.h"
#include "pentatron/base/text.h"

namespace pentatron::checkpoint {

namespace fs = std::filesystem;

namespace {

/// Chunks up to this size are read at once, larger ones in blocks of it.
constexpr uint64_t kMaxBlock = uint64_t{4} << 20;
constexpr size_t kMaxOpen = 256;
/// Bytes in a row from which on a second thread helps.
constexpr uint64_t kLongRead = uint64_t{8} << 20;
/// Bytes between the copy from the page cache and the checksum: they stay in the processor's cache.
constexpr size_t kCacheBlock = size_t{256} << 10;

/// Reads consecutive bytes; returns their checksum, continuing `crc`.
uint32_t read_summed(const ShardFile& file, uint64_t at, std::span<std::byte> target,
                     uint32_t crc = 0) {
  while (!target.empty()) {
    const auto block = target.first(std::min(target.size(), kCacheBlock));
    file.read(at, block);
    crc = crc32c(block, crc);
    at += block.size();
    target = target.subspan(block.size());
  }
  return crc;
}

} // namespace

struct CheckpointReader::OpenFile {
  const std::string* name = nullptr;
  const FileInfo* info = nullptr;
  std::unique_ptr<ShardFile> file;
  std::shared_ptr<const MappedFile> mapped;
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

std::string CheckpointReader::read_attachment(std::string_view name) const {
  if (const auto it = attachments().find(name); it != attachments().end())
    return checkpoint::read_attachment(folder_, name, it->second);
  std::vector<std::string> names;
  for (const auto& [known, attachment] : attachments()) names.push_back(known);
  const std::string near = nearest(name, names);
  raise<CheckpointError>("{} has no file '{}'{}{}", folder_.string(), excerpt(name),
                         near.empty() ? "" : "\n  try: ", excerpt(near));
}

std::vector<std::optional<CheckpointReader::Mapped>>
CheckpointReader::map(std::span<const Wanted> wanted) {
  std::vector<std::optional<Mapped>> result(wanted.size());
  std::set<std::pair<OpenFile*, size_t>> unchecked;
  for (size_t i = 0; i < wanted.size(); ++i) {
    const Box& box = wanted[i].box;
    const TensorInfo& tensor = info(wanted[i].name);
    if (!fits(box, tensor.shape) || numel(box) == 0) continue;
    const size_t element = size_of(tensor.dtype);
    for (const Source& source : sources_.find(wanted[i].name)->second) {
      if (intersect(*source.box, box) != box) continue;
      CopyRun run;
      if (!Runs(box, *source.box, box).next(run) || run.count != numel(box)) break;
      const uint64_t begin = source.begin + static_cast<uint64_t>(run.source) * element;
      const size_t size = static_cast<size_t>(run.count) * element;
      const auto& file = map_file(*source.file);
      if (begin % element != 0) break;
      result[i] = Mapped{file, file->bytes().subspan(static_cast<size_t>(begin), size)};
      const uint64_t chunk_bytes = source.file->info->chunk_bytes;
      for (uint64_t chunk = begin / chunk_bytes; chunk * chunk_bytes < begin + size; ++chunk)
        if (!source.file->checked[static_cast<size_t>(chunk)])
          unchecked.emplace(source.file, static_cast<size_t>(chunk));
      break;
    }
  }
  const std::vector<std::pair<OpenFile*, size_t>> chunks(unchecked.begin(), unchecked.end());
  std::atomic<uint64_t> bytes = 0;
  share(0, chunks.size(), [&](size_t i) {
    const auto& [file, chunk] = chunks[i];
    const std::span<const std::byte> all = file->mapped->bytes();
    const auto begin = static_cast<size_t>(chunk * file->info->chunk_bytes);
    const auto part =
        all.subspan(begin, std::min<size_t>(all.size() - begin, file->info->chunk_bytes));
    require_crc(*file, chunk, crc32c(part));
    if (progress_) progress_();
    bytes += part.size();
  });
  for (const auto& [file, chunk] : chunks) file->checked[chunk] = true;
  bytes_read_ += bytes;
  return result;
}

const std::shared_ptr<const MappedFile>& CheckpointReader::map_file(OpenFile& file) {
  if (!file.mapped) {
    open(file); // tells what is wrong with it
    auto mapped =
        std::make_shared<const MappedFile>(folder_ / *file.name, MappedFile::Access::kPrivate);
    if (mapped->size() != file.info->bytes)
      raise<CheckpointError>("{} was truncated while it was being read", mapped->path().string());
    file.mapped = std::move(mapped);
  }
  return file.mapped;
}

void CheckpointReader::add_files(std::string_view name, const Box& box,
                                 std::set<std::string>& files) const {
  const auto sources = sources_.find(name);
  if (sources == sources_.end()) return;
  for (const Source& source : sources->second)
    if (intersect(*source.box, box)) files.insert(*source.file->name);
}

void CheckpointReader::read(std::string_view name, const Box& box, std::span<std::byte> target) {
  read(name, box, target, row_major_strides(box.size));
}

void CheckpointReader::read(std::string_view name, const Box& box, std::span<std::byte> target,
                            std::span<const int64_t> strides) {
  const TensorInfo& tensor = info(name);
  const size_t element = size_of(tensor.dtype);
  if (!fits(box, tensor.shape))
    raise<CheckpointError>("box {} is outside {} [{}]", to_text(box), excerpt(name),
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
    if (block == file.info->chunk_bytes && left >= kLongRead) {
      read_pieces(file);
      read_long(file, {.at = at, .size = left, .target = to});
      continue;
    }
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

/// Straight to its place.
void CheckpointReader::read_long(OpenFile& file, const Piece& piece) {
  const ShardFile& source = open(file);
  const FileInfo& info = *file.info;
  const uint64_t end = piece.at + piece.size;
  const auto first = static_cast<size_t>(piece.at / info.chunk_bytes);
  const auto last = static_cast<size_t>((end + info.chunk_bytes - 1) / info.chunk_bytes);
  std::atomic<uint64_t> bytes = 0;
  share(first, last, [&](size_t chunk) {
    const uint64_t begin = chunk * info.chunk_bytes;
    const uint64_t stop = std::min(info.bytes, begin + info.chunk_bytes);
    const uint64_t from = std::max(begin, piece.at), to = std::min(stop, end);
    const std::span wanted(piece.target + (from - piece.at), static_cast<size_t>(to - from));
    if (progress_) progress_();
    if (file.checked[chunk]) {
      source.read(from, wanted);
      bytes += wanted.size();
      return;
    }
    thread_local std::vector<std::byte> spare;
    spare.resize(static_cast<size_t>(std::max(from - begin, stop - to)));
    uint32_t crc = read_summed(source, begin, std::span(spare).first(from - begin));
    crc = read_summed(source, from, wanted, crc);
    crc = read_summed(source, to, std::span(spare).first(stop - to), crc);
    bytes += stop - begin;
    require_crc(file, chunk, crc);
  });
  std::fill(file.checked.begin() + static_cast<std::ptrdiff_t>(first),
            file.checked.begin() + static_cast<std::ptrdiff_t>(last), true);
  bytes_read_ += bytes;
}

void CheckpointReader::share(size_t first, size_t last, const std::function<void(size_t)>& work) {
  std::atomic<size_t> next = first;
  const auto run = [&] {
    try {
      for (size_t i = next++; i < last; i = next++) work(i);
    } catch (...) {
      next = last;
      throw;
    }
  };
  if (!helper_) helper_ = std::make_unique<IoThreads>(1);
  helper_->submit(run);
  std::exception_ptr failure;
  try {
    run();
  } catch (...) {
    failure = std::current_exception();
  }
  try {
    helper_->finish(); // in any case: it works on what is ours
  } catch (...) {
    if (!failure) failure = std::current_exception();
  }
  if (failure) std::rethrow_exception(failure);
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

void CheckpointReader::require_crc(const OpenFile& file, size_t chunk, uint32_t crc) const {
  if (crc != file.info->crcs[chunk])
    throw CheckpointError(damaged_chunk((folder_ / *file.name).string(), *file.info, chunk));
}

void CheckpointReader::check_chunk(OpenFile& file, size_t chunk, uint32_t crc) const {
  require_crc(file, chunk, crc);
  file.checked[chunk] = true;
}

void CheckpointReader::stream_chunk(OpenFile& file, size_t chunk) {
  const uint64_t begin = chunk * file.info->chunk_bytes;
  const uint64_t end = std::min(file.info->bytes, begin + file.info->chunk_bytes);
  uint32_t crc = 0;
  for (uint64_t at = begin; at < end;) {
    const uint64_t next = std::min(end, at + kMaxBlock);
    load(file, at, next);
    crc = crc32c(std::span(buffer_).subspan(static_cast<size_t>(at - buffer_begin_),
                                            static_cast<size_t>(next - at)),
                 crc);
    at = next;
  }
  check_chunk(file, chunk, crc);
}

/// Reads pieces_, which lie in one block in ascending order, and empties it.
void CheckpointReader::read_pieces(OpenFile& file) {
  if (pieces_.empty()) return;
  if (progress_) progress_();
  const uint64_t chunk_bytes = file.info->chunk_bytes;
  const auto chunk = static_cast<size_t>(pieces_.front().at / chunk_bytes);
  const uint64_t begin = chunk * chunk_bytes;
  const uint64_t end = std::min(file.info->bytes, begin + chunk_bytes);
  const bool one_piece = pieces_.size() == 1;
  const Piece& first = pieces_.front();
  if (!file.checked[chunk] && one_piece && first.size == end - begin) { // straight to its place
    const std::span<std::byte> target(first.target, static_cast<size_t>(first.size));
    check_chunk(file, chunk, read_summed(open(file), begin, target));
    bytes_read_ += first.size;
    pieces_.clear();
    return;
  }
  if (!file.checked[chunk]) {
    if (end - begin > kMaxBlock) {
      stream_chunk(file, chunk);
    } else {
      load(file, begin, end);
      const auto at = static_cast<size_t>(begin - buffer_begin_);
      check_chunk(file, chunk,
                  crc32c(std::span(buffer_).subspan(at, static_cast<size_t>(end - begin))));
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
