#include "pentatron/data/gpt/index_cache.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <unistd.h>

#include "pentatron/base/atomic_file.h"
#include "pentatron/base/crc32c.h"
#include "pentatron/base/error.h"
#include "pentatron/base/format.h"
#include "pentatron/base/json.h"
#include "pentatron/base/log.h"
#include "pentatron/base/mapped_file.h"
#include "pentatron/base/sha256.h"
#include "pentatron/base/shared_objects.h"

namespace pentatron::data {

namespace fs = std::filesystem;

// A file is: magic, u64 length of the description, the description (JSON and spaces), the three
// arrays as they lie in memory, u32 CRC-32C of all before it. Each array begins at a multiple of
// kAlignment, after zeros. The description is what the file was made from; all counts follow from
// that, and none is taken from the file.
namespace {

constexpr std::string_view kMagic = "PTGPTIX3";
constexpr size_t kAlignment = 8;
constexpr size_t kHeaderBytes = kMagic.size() + sizeof(uint64_t);
constexpr uint64_t kMostDescription = 1u << 16;
/// Header, description, what fills arrays up, and the checksum.
constexpr size_t kMostBesideArrays = kHeaderBytes + kMostDescription + 64;
constexpr std::string_view kSuffix = ".gptindex";
constexpr int64_t kLengthsChunk = int64_t{1} << 20; // lengths read at once

size_t padding(size_t size) {
  return (kAlignment - size % kAlignment) % kAlignment;
}

/// What the arrays are a function of.
struct MadeFrom {
  const SequenceLengths& lengths;
  const GptIndexOptions& options;
  std::string text = {}; ///< by this they are found
  GptIndex counted = {}; ///< without arrays
};

MadeFrom made_from(const SequenceLengths& lengths, const GptIndexOptions& options) {
  uint32_t crc = 0;
  uint64_t mixed = 0; // another function of them: together 96 bits tell corpora apart
  int64_t tokens = 0;
  std::vector<int32_t> chunk(static_cast<size_t>(std::min(kLengthsChunk, lengths.count)));
  for (int64_t begin = 0; begin < lengths.count; begin += kLengthsChunk) {
    const auto part =
        std::span(chunk).first(static_cast<size_t>(std::min(kLengthsChunk, lengths.count - begin)));
    lengths.read(begin, part);
    crc = crc32c(std::as_bytes(part), crc);
    for (const int32_t length : part) {
      mixed = std::rotl((mixed ^ static_cast<uint32_t>(length)) * 0x9E3779B97F4A7C15u, 29);
      tokens += length;
    }
  }
  Json text{{"sequences", lengths.count}, {"first_sequence", lengths.first_sequence},
            {"lengths", {crc, mixed}},    {"sequence_length", options.sequence_length},
            {"seed", options.seed},       {"drop_last", options.drop_last_partial_sequence}};
  if (options.num_samples) text["num_samples"] = *options.num_samples;
  return {lengths, options, dump_json(text),
          count_gpt_index(tokens, lengths.count, lengths.first_sequence, options)};
}

std::vector<int32_t> read_all(const SequenceLengths& lengths) {
  std::vector<int32_t> all(static_cast<size_t>(lengths.count));
  lengths.read(0, all);
  return all;
}

GptIndex build(const MadeFrom& from) {
  return build_gpt_index(read_all(from.lengths), from.lengths.first_sequence, from.options);
}

fs::path file_name(const MadeFrom& from) {
  return sha256(from.text).substr(0, 32) + std::string(kSuffix);
}

template <class Index, class Use> void for_each_array(Index& index, Use use) {
  use(index.documents);
  std::visit(use, index.sample_begin);
  std::visit(use, index.shuffle);
}

/// All but the checksum.
template <class Put>
void write_arrays(const MadeFrom& from, const GptIndex& index, const Put& put) {
  std::string description = from.text;
  description.append(padding(kHeaderBytes + description.size()), ' ');
  const uint64_t length = description.size();
  put(std::as_bytes(std::span(kMagic)));
  put(std::as_bytes(std::span(&length, 1)));
  put(std::as_bytes(std::span(description)));
  for_each_array(index, [&](const auto& values) {
    const std::array<std::byte, kAlignment> zeros{};
    put(std::as_bytes(values.span()));
    put(std::span(zeros).first(padding(values.span().size_bytes())));
  });
}

template <class Put> void write(const MadeFrom& from, const GptIndex& index, const Put& put) {
  uint32_t crc = 0;
  write_arrays(from, index, [&](std::span<const std::byte> bytes) {
    put(bytes);
    crc = crc32c(bytes, crc);
  });
  put(std::as_bytes(std::span(&crc, 1)));
}

/// Hands out a mapped file, or an entry of a store, from its beginning to its end.
class MappedReader {
 public:
  explicit MappedReader(const fs::path& path) : where_(path.string()) {
    auto file = std::make_shared<const MappedFile>(path);
    all_ = left_ = file->bytes();
    owner_ = std::move(file);
  }
  explicit MappedReader(const MachineStore::Entry& entry)
      : where_("the shared sample order"), owner_(entry.owner), all_(entry.bytes),
        left_(entry.bytes) {}

  const std::string& where() const { return where_; }
  std::span<const std::byte> take(uint64_t size, std::string_view what) {
    if (size > left_.size()) raise<DataError>("{}: the file ends before {}", where_, what);
    const auto bytes = left_.first(static_cast<size_t>(size));
    left_ = left_.subspan(bytes.size());
    return bytes;
  }
  template <class T> T number(std::string_view what) {
    T value;
    std::memcpy(&value, take(sizeof value, what).data(), sizeof value);
    return value;
  }
  template <class T> SharedArray<T> array(uint64_t count) {
    if (count > left_.size() / sizeof(T))
      raise<DataError>("{}: the file ends before the arrays", where_);
    const auto bytes = take(count * sizeof(T), "the arrays");
    take(padding(bytes.size()), "the arrays");
    return {owner_, {reinterpret_cast<const T*>(bytes.data()), static_cast<size_t>(count)}};
  }
  /// Of all that was taken.
  uint32_t crc() const { return crc32c(all_.first(all_.size() - left_.size())); }

 private:
  std::string where_;
  std::shared_ptr<const void> owner_;
  std::span<const std::byte> all_, left_;
};

/// Whether each number leads to an element of what it counts. That a checksum is right says nothing
/// of a file that somebody else wrote.
bool leads_nowhere_else(const GptIndex& index, const SequenceLengths& lengths) {
  const auto [least, most] = std::ranges::minmax(index.documents);
  if (least < lengths.first_sequence || most - lengths.first_sequence >= lengths.count)
    return false;
  const auto documents = static_cast<int64_t>(index.documents.size());
  const bool places = std::visit(
      [&](const auto& all) { // offsets are compared with the corpus where they are used
        int64_t before = 0;
        for (size_t i = 0; i < all.size(); i += 2) {
          if (all[i] < before || all[i] >= documents || all[i + 1] < 0) return false;
          before = all[i];
        }
        return true;
      },
      index.sample_begin);
  return places && std::visit(
                       [&](const auto& all) {
                         const auto [low, high] = std::ranges::minmax(all);
                         return !std::cmp_less(low, 0) && std::cmp_less(high, index.num_samples);
                       },
                       index.shuffle);
}

/// Throws DataError if it is damaged, or of another corpus.
GptIndex read(MappedReader in, const MadeFrom& from) {
  const std::string& where = in.where();
  const auto magic = in.take(kMagic.size(), "the magic");
  const auto length = in.number<uint64_t>("the length of the description");
  if (!std::ranges::equal(magic, std::as_bytes(std::span(kMagic))) || length > kMostDescription ||
      padding(kHeaderBytes + length) != 0)
    raise<DataError>("{} is not an index cache", where);
  const auto bytes = in.take(length, "the description");
  std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  text.remove_suffix(text.size() - (text.find_last_not_of(' ') + 1));
  if (text != from.text) raise<DataError>("{} was made from something else", where);
  GptIndex index = from.counted;
  const auto samples = static_cast<uint64_t>(index.num_samples);
  index.documents = in.array<int32_t>(static_cast<uint64_t>(from.lengths.count * index.num_epochs));
  if (has_wide_places(index, from.lengths.count))
    index.sample_begin = in.array<int64_t>(2 * (samples + 1));
  else
    index.sample_begin = in.array<int32_t>(2 * (samples + 1));
  if (has_wide_shuffle(index))
    index.shuffle = in.array<int64_t>(samples);
  else
    index.shuffle = in.array<uint32_t>(samples);
  const uint32_t crc = in.crc();
  if (in.number<uint32_t>("the checksum") != crc)
    raise<DataError>("{}: its checksum does not match", where);
  if (!leads_nowhere_else(index, from.lengths))
    raise<DataError>("{}: it names sequences or samples that do not exist", where);
  return index;
}

/// The file's arrays if they are there and good.
std::optional<GptIndex> find(const fs::path& path, const MadeFrom& from, bool tells) {
  if (std::error_code error; !fs::exists(path, error)) return std::nullopt;
  try {
    return read(MappedReader(path), from);
  } catch (const DataError& damage) {
    if (tells)
      log::warning("the index cache is corrupted and is computed again: {}", damage.what());
    return std::nullopt;
  }
}

/// What processes that were killed were writing.
void remove_unfinished(const fs::path& folder) {
  std::error_code error;
  for (auto it = fs::directory_iterator(folder, error); !error && it != fs::directory_iterator();
       it.increment(error))
    if (it->path().filename().string().find(std::string(kSuffix) + ".tmp-") != std::string::npos)
      fs::remove(it->path(), error);
}

GptIndex cached(const fs::path& folder, const MadeFrom& from) {
  const fs::path path = folder / file_name(from);
  if (std::optional<GptIndex> index = find(path, from, false)) return std::move(*index);
  std::error_code error;
  fs::create_directories(folder, error);
  std::optional<FolderLock> lock;
  // Where nothing can be written nobody waits for a file.
  if (::access(folder.c_str(), W_OK) == 0) lock.emplace(folder);
  // Another one may have made it meanwhile.
  if (std::optional<GptIndex> index = find(path, from, true)) return std::move(*index);
  if (lock && lock->held()) remove_unfinished(folder);
  GptIndex index = build(from);
  try {
    AtomicFile file(path);
    write(from, index, [&](std::span<const std::byte> bytes) { file.write(bytes); });
    file.commit();
    GptIndex mapped = read(MappedReader(path), from);
    log::info("computed the sample order of {} and saved it in {} ({})", from.options.name,
              path.string(), format_bytes(static_cast<double>(index.array_bytes())));
    return mapped;
  } catch (const Error& failure) {
    log::shared_warning("dataset.data_cache_path={} cannot be written, so each process keeps the "
                        "sample order in its own memory: {}\n  try: another "
                        "dataset.data_cache_path",
                        folder.string(), failure.what());
  }
  return index;
}

/// Of the entry that the first process has added.
GptIndex stored(MachineStore& store, const MadeFrom& from) {
  const std::string key = file_name(from).string();
  std::optional<MachineStore::Lock> lock(std::in_place, store);
  const MachineStore::Entry found = store.find(key);
  const bool is_there = found.owner != nullptr;
  if (is_there || store.closed()) lock.reset(); // nobody waits for what is not to be added
  if (is_there) return read(MappedReader(found), from);
  if (!lock) return build(from);
  const int64_t arrays = planned_array_bytes(from.counted, from.lengths.count);
  std::optional<GptIndex> index;
  const auto build_once = [&] {
    if (!index) index = build(from);
  };
  try {
    // Built where there is room for it; without, the others do not wait.
    const MachineStore::Entry entry = store.add(
        key, static_cast<size_t>(arrays) + kMostBesideArrays, [&](const MachineStore::Put& put) {
          build_once();
          write(from, *index, put);
        });
    lock.reset();
    return read(MappedReader(entry), from);
  } catch (const Error& failure) {
    store.close();
    lock.reset();
    log::warning("the sample order of {} takes {} of memory in every process, because one copy for "
                 "this machine has no room: {}\n  try: dataset.data_cache_path=FOLDER on a larger "
                 "disk",
                 from.options.name, format_bytes(static_cast<double>(arrays)), failure.what());
  }
  build_once();
  return std::move(*index);
}

GptIndex found_or_built(const fs::path& folder, const MadeFrom& from) {
  std::optional<GptIndex> index = find(folder / file_name(from), from, false);
  return index ? std::move(*index) : build(from);
}

} // namespace

GptIndex cached_gpt_index(const fs::path& folder, const SequenceLengths& lengths,
                          const GptIndexOptions& options) {
  return cached(folder, made_from(lengths, options));
}

std::shared_ptr<const GptIndex> shared_gpt_index(const fs::path& folder,
                                                 const SequenceLengths& lengths,
                                                 const GptIndexOptions& options, bool read_only,
                                                 MachineStore* store) {
  const MadeFrom from = made_from(lengths, options);
  static SharedObjects<GptIndex> indexes;
  const auto make = [&] {
    if (!folder.empty()) return read_only ? found_or_built(folder, from) : cached(folder, from);
    return store != nullptr ? stored(*store, from) : build(from);
  };
  return indexes.get(folder.string() + "\n" + from.text,
                     [&] { return std::make_shared<const GptIndex>(make()); });
}

} // namespace pentatron::data
