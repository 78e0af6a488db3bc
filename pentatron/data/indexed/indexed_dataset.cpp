#include "pentatron/data/indexed/indexed_dataset.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <limits>
#include <system_error>

#include "pentatron/base/error.h"
#include "pentatron/base/text.h"

namespace pentatron::data {

namespace {

constexpr int64_t kChunk = int64_t{1} << 15; // entries read at a time

template <class T> T load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

template <class T> void widen(const std::byte* from, int64_t count, int64_t* out) {
  for (int64_t i = 0; i < count; ++i)
    out[i] = static_cast<int64_t>(load<T>(from + i * static_cast<int64_t>(sizeof(T))));
}

/// Of an integer dtype.
void widen(IndexedDtype dtype, const std::byte* from, int64_t count, int64_t* out) {
  switch (dtype) {
  case IndexedDtype::kU8:
    return widen<uint8_t>(from, count, out);
  case IndexedDtype::kI8:
    return widen<int8_t>(from, count, out);
  case IndexedDtype::kI16:
    return widen<int16_t>(from, count, out);
  case IndexedDtype::kI32:
    return widen<int32_t>(from, count, out);
  case IndexedDtype::kI64:
    return widen<int64_t>(from, count, out);
  case IndexedDtype::kU16:
    return widen<uint16_t>(from, count, out);
  case IndexedDtype::kF64:
  case IndexedDtype::kF32:
    break;
  }
}

/// The prefix, if there is an index of that name; else says which corpora are there.
const std::string& existing_prefix(const std::string& prefix) {
  namespace fs = std::filesystem;
  std::error_code error;
  if (fs::exists(prefix + ".idx", error)) return prefix;
  const fs::path path(prefix);
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  const std::string name = path.filename().string();
  std::string similar; // what `preprocess --output PREFIX` makes of it
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string other = entry.path().stem().string();
    if (entry.path().extension() == ".idx" && other.starts_with(name + "_") &&
        (similar.empty() || other < similar))
      similar = other;
  }
  if (!similar.empty())
    raise<DataError>("{}.idx does not exist, but {}.idx does\n  try: the prefix {}", prefix,
                     (path.parent_path() / similar).string(),
                     shell_word((path.parent_path() / similar).string()));
  raise<DataError>("{}.idx does not exist\n  try: the prefix of PREFIX.bin and PREFIX.idx, as "
                   "printed by pentatron preprocess",
                   prefix);
}

} // namespace

std::string without_ending(std::string prefix) {
  if (prefix.ends_with(".bin") || prefix.ends_with(".idx")) prefix.resize(prefix.size() - 4);
  return prefix;
}

IndexedDataset::IndexedDataset(const std::string& prefix) try
    : prefix_(existing_prefix(prefix)), index_(prefix + ".idx"), data_(prefix + ".bin") {
  read_header();
  check_sequences();
  check_documents();
} catch (const DataError& error) {
  if (!parts_of(error.what()).remedy.empty()) throw;
  raise<DataError>("{}\n  try: an intact copy of {}.bin and {}.idx, or make both again with "
                   "pentatron preprocess",
                   error.what(), prefix, prefix);
}

void IndexedDataset::bad(std::string_view field, const std::string& what) const {
  raise<DataError>("{}: {} {}", index_.path().string(), field, what);
}

void IndexedDataset::read_header() {
  std::array<std::byte, kIndexHeaderBytes> header{};
  index_.read(0, std::span<std::byte>(header), "the header");
  if (std::memcmp(header.data(), kIndexMagic.data(), kIndexMagic.size()) != 0)
    bad("magic", "is not MMIDIDX, so this is not the index of a corpus");
  const auto version = load<uint64_t>(header.data() + 9);
  if (version != kIndexVersion) bad("version", fmt::format("is {}, not 1", version));
  const auto code = load<uint8_t>(header.data() + 17);
  const auto dtype = dtype_of_code(code);
  if (!dtype) bad("dtype", fmt::format("is {}, not one of 1 to 8", code));
  dtype_ = *dtype;
  item_bytes_ = item_bytes(dtype_);
  const auto sequences = load<uint64_t>(header.data() + 18);
  const auto documents = load<uint64_t>(header.data() + 26);
  uint64_t left = index_.size() - kIndexHeaderBytes;
  if (sequences > left / 12) {
    bad("sequence_count", fmt::format("is {}, and each needs 12 bytes, but the file has {} bytes",
                                      sequences, index_.size()));
  }
  left -= 12 * sequences;
  if (documents < 1 || documents > left / 8) {
    bad("document_count", fmt::format("is {} (one more than the documents) and each needs 8 bytes, "
                                      "but after sequence_count={} the file has only {} bytes left",
                                      documents, sequences, left));
  }
  left -= 8 * documents;
  if (left != 0 && left != sequences) {
    bad("sequence_modes",
        fmt::format("has {} bytes instead of none or sequence_count={}", left, sequences));
  }
  has_modes_ = left != 0;
  num_sequences_ = static_cast<int64_t>(sequences);
  num_document_indices_ = static_cast<int64_t>(documents);
}

void IndexedDataset::check_sequences() {
  const auto data_bytes =
      static_cast<int64_t>(std::min<uint64_t>(data_.size(), std::numeric_limits<int64_t>::max()));
  std::vector<int32_t> lengths(static_cast<size_t>(std::min(kChunk, num_sequences_)));
  std::vector<int64_t> pointers(lengths.size());
  int64_t bytes = 0;
  for (int64_t begin = 0; begin < num_sequences_; begin += kChunk) {
    const auto n = static_cast<size_t>(std::min(kChunk, num_sequences_ - begin));
    index_.read(lengths_at() + 4 * static_cast<uint64_t>(begin), std::span(lengths).first(n),
                "sequence_lengths");
    index_.read(pointers_at() + 8 * static_cast<uint64_t>(begin), std::span(pointers).first(n),
                "sequence_pointers");
    for (size_t k = 0; k < n; ++k) {
      const int64_t i = begin + static_cast<int64_t>(k);
      if (lengths[k] < 0)
        bad(fmt::format("sequence_lengths[{}]", i), fmt::format("is {}", lengths[k]));
      if (pointers[k] != bytes) {
        bad(fmt::format("sequence_pointers[{}]", i),
            fmt::format("is {}, but the sequences before it have {} bytes", pointers[k], bytes));
      }
      const int64_t size = int64_t{lengths[k]} * item_bytes_;
      if (size > data_bytes - bytes) {
        bad(fmt::format("sequence_lengths[{}]", i),
            fmt::format("is {}, that is {} bytes from byte {} on, but {} has {} bytes", lengths[k],
                        size, bytes, data_.path().string(), data_.size()));
      }
      bytes += size;
    }
  }
  if (static_cast<uint64_t>(bytes) != data_.size()) {
    raise<DataError>(
        "{} has {} bytes, but {} describes {} bytes: the two files do not belong together",
        data_.path().string(), data_.size(), index_.path().string(), bytes);
  }
  num_tokens_ = bytes / item_bytes_;
}

void IndexedDataset::check_documents() const {
  std::vector<int64_t> entries(static_cast<size_t>(std::min(kChunk, num_document_indices_)));
  int64_t before = 0;
  for (int64_t begin = 0; begin < num_document_indices_; begin += kChunk) {
    const auto n = static_cast<size_t>(std::min(kChunk, num_document_indices_ - begin));
    read_document_indices(begin, std::span(entries).first(n));
    for (size_t k = 0; k < n; ++k) {
      const int64_t i = begin + static_cast<int64_t>(k);
      const int64_t low = before;
      const int64_t high = i == 0 ? 0 : num_sequences_;
      if (entries[k] < low || entries[k] > high) {
        bad(fmt::format("document_indices[{}]", i),
            fmt::format("is {}, not in {} to {}", entries[k], low, high));
      }
      before = entries[k];
    }
  }
  if (before != num_sequences_) {
    bad(fmt::format("document_indices[{}]", num_document_indices_ - 1),
        fmt::format("is {}, but sequence_count={}", before, num_sequences_));
  }
}

IndexedDataset::Sequence IndexedDataset::sequence(int64_t i) const {
  if (i < 0 || i >= num_sequences_)
    raise<DataError>("{} has {} sequences, so sequence {} does not exist", prefix_, num_sequences_,
                     i);
  int32_t length = 0;
  int64_t pointer = 0;
  index_.read(lengths_at() + 4 * static_cast<uint64_t>(i), std::span(&length, 1),
              "sequence_lengths");
  index_.read(pointers_at() + 8 * static_cast<uint64_t>(i), std::span(&pointer, 1),
              "sequence_pointers");
  return {pointer / item_bytes_, length};
}

void IndexedDataset::read_lengths(int64_t begin, std::span<int32_t> out) const {
  PT_DCHECK(begin >= 0 && static_cast<int64_t>(out.size()) <= num_sequences_ - begin);
  index_.read(lengths_at() + 4 * static_cast<uint64_t>(begin), out, "sequence_lengths");
}

std::vector<int32_t> IndexedDataset::lengths(int64_t begin, int64_t end) const {
  PT_DCHECK(begin <= end);
  std::vector<int32_t> out(static_cast<size_t>(end - begin));
  read_lengths(begin, out);
  return out;
}

void IndexedDataset::read_document_indices(int64_t begin, std::span<int64_t> out) const {
  PT_DCHECK(begin >= 0 && static_cast<int64_t>(out.size()) <= num_document_indices_ - begin);
  index_.read(documents_at() + 8 * static_cast<uint64_t>(begin), out, "document_indices");
}

int64_t IndexedDataset::document_begin(int64_t i) const {
  int64_t first = 0;
  read_document_indices(i, std::span(&first, 1));
  return first == num_sequences_ ? num_tokens_ : sequence(first).first_token;
}

int8_t IndexedDataset::mode(int64_t i) const {
  PT_DCHECK(i >= 0 && i < num_sequences_);
  if (!has_modes_) bad("sequence_modes", "are not in the file");
  int8_t mode = 0;
  index_.read(modes_at() + static_cast<uint64_t>(i), std::span(&mode, 1), "sequence_modes");
  return mode;
}

void IndexedDataset::check_range(int64_t begin, int64_t count) const {
  if (begin < 0 || begin > num_tokens_ || count < 0 || count > num_tokens_ - begin) {
    raise<DataError>("{} has {} tokens, so {} tokens from token {} on do not exist",
                     data_.path().string(), num_tokens_, count, begin);
  }
}

void IndexedDataset::read_items(int64_t begin, std::span<std::byte> out) const {
  check_range(begin, static_cast<int64_t>(out.size()) / item_bytes_);
  data_.read(static_cast<uint64_t>(begin) * static_cast<uint64_t>(item_bytes_), out, "tokens");
}

void IndexedDataset::read_tokens(int64_t begin, int64_t count, int64_t* out) const {
  if (!is_integer(dtype_))
    bad("dtype", fmt::format("is {}, which cannot hold token ids", name_of(dtype_)));
  check_range(begin, count);
  // The narrow items lie in the upper end of `out` until they are widened from its lower end.
  auto* bytes = reinterpret_cast<std::byte*>(out) + count * (8 - item_bytes_);
  read_items(begin, {bytes, static_cast<size_t>(count * item_bytes_)});
  widen(dtype_, bytes, count, out);
}

} // namespace pentatron::data
