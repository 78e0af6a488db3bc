#include "pentatron/data/indexed/indexed_writer.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <limits>
#include <system_error>

#include <unistd.h>

#include "pentatron/base/error.h"
#include "pentatron/base/paths.h"
#include "pentatron/base/text.h"
#include "pentatron/data/indexed/indexed_dataset.h"

namespace pentatron::data {

namespace fs = std::filesystem;

namespace {

constexpr uint64_t kCopyBytes = uint64_t{1} << 18;

template <class T> std::vector<std::byte> narrowed(std::span<const int32_t> tokens) {
  std::vector<std::byte> items(tokens.size() * sizeof(T));
  for (size_t i = 0; i < tokens.size(); ++i) {
    const T item = static_cast<T>(tokens[i]);
    std::memcpy(items.data() + i * sizeof(T), &item, sizeof(T));
  }
  return items;
}

std::vector<std::byte> narrowed(IndexedDtype dtype, std::span<const int32_t> tokens) {
  switch (dtype) {
  case IndexedDtype::kU8:
  case IndexedDtype::kI8:
    return narrowed<uint8_t>(tokens);
  case IndexedDtype::kI16:
  case IndexedDtype::kU16:
    return narrowed<uint16_t>(tokens);
  case IndexedDtype::kI32:
    return narrowed<int32_t>(tokens);
  case IndexedDtype::kI64:
    return narrowed<int64_t>(tokens);
  case IndexedDtype::kF64:
    return narrowed<double>(tokens);
  case IndexedDtype::kF32:
    return narrowed<float>(tokens);
  }
  return {};
}

/// Hands the content of `file`, of `size` bytes, to `take` in pieces of whole 8 bytes.
template <class Take> void for_each_piece(const fs::path& path, uint64_t size, Take take) {
  const RandomAccessFile file(path);
  std::vector<std::byte> buffer(static_cast<size_t>(std::min(size, kCopyBytes)));
  for (uint64_t at = 0; at < size; at += kCopyBytes) {
    const std::span<std::byte> piece =
        std::span(buffer).first(static_cast<size_t>(std::min(kCopyBytes, size - at)));
    file.read(at, piece, "the part written aside");
    take(std::span<const std::byte>(piece));
  }
}

void rename_to(const fs::path& from, const fs::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0)
    raise<DataError>("{} cannot be renamed to its final name: {}", to.string(),
                     std::strerror(errno));
}

void put_index_in_place(const std::string& prefix, const fs::path& folder) {
  rename_to(folder / "index", prefix + ".idx");
  const fs::path parent = fs::path(prefix).parent_path();
  sync_path(parent.empty() ? fs::path(".") : parent);
  std::error_code ignored;
  fs::remove_all(folder, ignored);
}

} // namespace

std::vector<fs::path> corpus_files(const std::string& prefix) {
  const std::string name = fs::path(prefix).filename().string();
  if (name == "." || name == ".." || trim(name).empty())
    raise<ConfigError>("--output \"{}\" does not end in the name of a corpus\n  try: --output {}",
                       prefix, shell_word((fs::path(prefix).parent_path() / "corpus").string()));
  return {prefix + ".bin", prefix + ".idx"};
}

void require_corpus(const std::string& prefix) {
  std::error_code error;
  std::vector<fs::path> there;
  for (const fs::path& file : corpus_files(prefix))
    if (is_there(file)) there.push_back(file);
  if (there.empty()) return;
  try {
    const IndexedDataset corpus(prefix);
  } catch (const Error& damage) {
    std::string removal = "rm";
    for (const fs::path& file : there) {
      const std::string name = file.string();
      removal += " " + shell_word(name.starts_with('-') ? "./" + name : name);
    }
    const bool files = std::ranges::all_of(there, [&](const fs::path& file) { // that can be read
      return !fs::is_directory(file, error) && ::access(file.c_str(), R_OK) == 0;
    });
    raise<ConfigError>("{} exists and is not part of an intact corpus ({}), so it is not replaced\n"
                       "  try: another --output{}",
                       there[0].string(), parts_of(damage.what()).sentence,
                       files ? fmt::format(", or {} if you do not need it", removal) : "");
  }
}

IndexedWriter::IndexedWriter(std::string prefix, const Options& options)
    : prefix_(std::move(prefix)), options_(options),
      folder_(options.folder.empty() ? create_aside(prefix_, lock_) : options.folder),
      item_bytes_(item_bytes(options.dtype)), position_(options.resume.value_or(Position{})) {
  std::error_code error;
  fs::create_directories(folder_, error);
  if (error) raise<DataError>("{} cannot be created: {}", folder_.string(), error.message());
  const auto size = [](int64_t count, int64_t bytes) {
    return static_cast<uint64_t>(count) * static_cast<uint64_t>(bytes);
  };
  data_ = std::make_unique<AppendFile>(folder_ / "tokens", size(position_.tokens, item_bytes_));
  lengths_ = std::make_unique<AppendFile>(folder_ / "lengths", size(position_.sequences, 4));
  documents_ = std::make_unique<AppendFile>(folder_ / "documents", size(position_.documents, 8));
  if (options_.modes)
    modes_ = std::make_unique<AppendFile>(folder_ / "modes", size(position_.sequences, 1));
}

IndexedWriter::~IndexedWriter() {
  if (committed_ || !options_.folder.empty()) return;
  std::error_code ignored;
  fs::remove_all(folder_, ignored);
}

void IndexedWriter::add_sequence(std::span<const int32_t> tokens, int8_t mode) {
  if (options_.dtype == IndexedDtype::kI32)
    return add_items(std::as_bytes(tokens), mode); // no number is out of range
  if (is_integer(options_.dtype)) {
    const auto [low, high] = token_range(options_.dtype);
    for (const int32_t token : tokens) {
      if (token < low || token > high) {
        raise<DataError>("{}.bin: token {} does not fit into {}", prefix_, token,
                         name_of(options_.dtype));
      }
    }
  }
  add_items(narrowed(options_.dtype, tokens), mode);
}

void IndexedWriter::add_items(std::span<const std::byte> items, int8_t mode) {
  PT_DCHECK(items.size() % static_cast<size_t>(item_bytes_) == 0);
  const auto count = static_cast<int64_t>(items.size()) / item_bytes_;
  if (count > std::numeric_limits<int32_t>::max()) {
    raise<DataError>("{}.idx: a sequence of {} tokens is too long for the index", prefix_, count);
  }
  data_->write(items);
  lengths_->write_value(static_cast<int32_t>(count));
  if (modes_) modes_->write_value(mode);
  position_.tokens += count;
  ++position_.sequences;
}

void IndexedWriter::end_document() {
  documents_->write_value(position_.sequences);
  ++position_.documents;
}

void IndexedWriter::sync() {
  data_->sync();
  lengths_->sync();
  documents_->sync();
  if (modes_) modes_->sync();
}

void IndexedWriter::write_index(const fs::path& path) {
  AppendFile index(path, 0);
  index.write(std::as_bytes(std::span(kIndexMagic)));
  index.write_value(kIndexVersion);
  index.write_value(static_cast<uint8_t>(options_.dtype));
  index.write_value(static_cast<uint64_t>(position_.sequences));
  index.write_value(static_cast<uint64_t>(position_.documents + 1));
  const auto copy = [&](std::span<const std::byte> piece) { index.write(piece); };
  for_each_piece(lengths_->path(), lengths_->size(), copy);
  int64_t pointer = 0;
  for_each_piece(lengths_->path(), lengths_->size(), [&](std::span<const std::byte> piece) {
    for (size_t at = 0; at < piece.size(); at += 4) {
      int32_t length = 0;
      std::memcpy(&length, piece.data() + at, 4);
      index.write_value(pointer);
      pointer += length * item_bytes_;
    }
  });
  index.write_value(int64_t{0});
  for_each_piece(documents_->path(), documents_->size(), copy);
  if (modes_) for_each_piece(modes_->path(), modes_->size(), copy);
  index.sync();
}

void IndexedWriter::prepare() {
  for (const fs::path& file : corpus_files(prefix_))
    if (std::error_code error; fs::is_directory(file, error))
      raise<DataError>("{} is a folder, where a file is to be written", file.string());
  sync();
  write_index(folder_ / "index");
  prepared_ = true;
}

void IndexedWriter::commit() {
  PT_DCHECK(!committed_);
  if (!prepared_) prepare();
  const FolderLock one_at_a_time(fs::path(prefix_).parent_path()); // or two corpora mix
  std::error_code error;
  for (const fs::path& file : corpus_files(prefix_))
    if (!options_.replace && fs::exists(fs::symlink_status(file, error)))
      raise<DataError>("{} was created by another program in the meantime and is not overwritten\n"
                       "  try: another --output, or --overwrite to replace it",
                       file.string());
  // An index beside tokens that are not its own must never be seen, so the old one goes first.
  fs::remove(prefix_ + ".idx", error);
  rename_to(folder_ / "tokens", prefix_ + ".bin");
  put_index_in_place(prefix_, folder_);
  committed_ = true;
}

bool IndexedWriter::finish_commit(const std::string& prefix, const fs::path& folder) {
  if (fs::exists(folder / "tokens") || !fs::exists(folder / "index")) return false;
  put_index_in_place(prefix, folder);
  return true;
}

} // namespace pentatron::data
