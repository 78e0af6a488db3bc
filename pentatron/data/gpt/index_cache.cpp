#include "pentatron/data/gpt/index_cache.h"

#include <cstring>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include "pentatron/base/atomic_file.h"
#include "pentatron/base/crc32c.h"
#include "pentatron/base/error.h"
#include "pentatron/base/json.h"
#include "pentatron/base/log.h"
#include "pentatron/data/indexed/data_file.h"

namespace pentatron::data {

namespace fs = std::filesystem;

// A file is: magic, u64 length of the description, the description (JSON), the three arrays as they
// lie in memory, u32 CRC-32C of all before it.
namespace {

constexpr std::string_view kMagic = "PTGPTIX1";

/// What the arrays are a function of.
std::string describe(std::span<const int32_t> lengths, int64_t first,
                     const GptIndexOptions& options) {
  const auto bytes = std::as_bytes(lengths);
  Json made_from{{"sequences", lengths.size()},
                 {"first_sequence", first},
                 {"lengths_crc32c", {crc32c(bytes), crc32c(bytes, 0x9E3779B9u)}},
                 {"sequence_length", options.sequence_length},
                 {"seed", options.seed},
                 {"drop_last", options.drop_last_partial_sequence}};
  if (options.num_samples) made_from["num_samples"] = *options.num_samples;
  return dump_json(made_from);
}

fs::path file_name(const std::string& description) {
  const auto bytes = std::as_bytes(std::span(description));
  return fmt::format("{:08x}{:08x}.gptindex", crc32c(bytes), crc32c(bytes, 0x9E3779B9u));
}

template <class Array, class Use> void with_values(Array& array, Use use) {
  std::visit([&](auto& values) { use(values); }, array);
}

template <class Index, class Use> void for_each_array(Index& index, Use use) {
  use(index.documents);
  with_values(index.sample_begin, use);
  with_values(index.shuffle, use);
}

Json counts_of(const GptIndex& index) {
  return {{"sequence_length", index.sequence_length},
          {"tokens_per_epoch", index.tokens_per_epoch},
          {"num_epochs", index.num_epochs},
          {"num_samples", index.num_samples},
          {"samples_per_epoch", index.samples_per_epoch},
          {"separate_last_epoch", index.separate_last_epoch},
          {"documents", index.documents.size()},
          {"wide_places", index.sample_begin.index() == 1},
          {"wide_shuffle", index.shuffle.index() == 1}};
}

void write(const fs::path& path, const std::string& made_from, const GptIndex& index) {
  const std::string description =
      dump_json({{"made_from", Json::parse(made_from)}, {"counts", counts_of(index)}});
  AtomicFile file(path);
  uint32_t crc = 0;
  const auto put = [&](std::span<const std::byte> bytes) {
    file.write(bytes);
    crc = crc32c(bytes, crc);
  };
  const uint64_t length = description.size();
  put(std::as_bytes(std::span(kMagic)));
  put(std::as_bytes(std::span(&length, 1)));
  put(std::as_bytes(std::span(description)));
  for_each_array(index, [&](const auto& values) { put(std::as_bytes(std::span(values))); });
  file.write(std::as_bytes(std::span(&crc, 1)));
  file.commit();
}

/// None if the file is of another corpus with the same hash. Throws DataError for a damaged one.
std::optional<GptIndex> read(const fs::path& path, const std::string& made_from) {
  const RandomAccessFile file(path);
  uint64_t at = 0;
  uint32_t crc = 0;
  const auto get = [&](auto values, std::string_view what) {
    const auto bytes = std::as_writable_bytes(values);
    file.read(at, bytes, what);
    crc = crc32c(bytes, crc);
    at += bytes.size();
  };
  std::string magic(kMagic.size(), '\0');
  uint64_t length = 0;
  get(std::span(magic), "magic");
  get(std::span(&length, 1), "the length of the description");
  if (magic != kMagic || length > (1u << 16)) raise<DataError>("{}: magic", path.string());
  std::string text(length, '\0');
  get(std::span(text), "the description");
  const Json description = parse_json(text, path.string());
  const std::string where = path.string();
  if (!description.contains("made_from") || !description.contains("counts"))
    raise<DataError>("{}: the description", where);
  if (dump_json(description["made_from"]) != made_from) return std::nullopt;
  const Json& counts = description["counts"];
  GptIndex index;
  index.sequence_length = json_get<int64_t>(counts, "sequence_length", where);
  index.tokens_per_epoch = json_get<int64_t>(counts, "tokens_per_epoch", where);
  index.num_epochs = json_get<int64_t>(counts, "num_epochs", where);
  index.num_samples = json_get<int64_t>(counts, "num_samples", where);
  index.samples_per_epoch = json_get<int64_t>(counts, "samples_per_epoch", where);
  index.separate_last_epoch = json_get<bool>(counts, "separate_last_epoch", where);
  const auto documents = json_get<int64_t>(counts, "documents", where);
  if (json_get<bool>(counts, "wide_places", where))
    index.sample_begin.emplace<std::vector<int64_t>>();
  if (json_get<bool>(counts, "wide_shuffle", where)) index.shuffle.emplace<std::vector<int64_t>>();
  // Sizes before memory: no more than the file has.
  const auto most = static_cast<int64_t>(file.size() / 4);
  if (documents < 0 || documents > most || index.num_samples < 0 || index.num_samples > most)
    raise<DataError>("{}: the description", where);
  size_t sizes[] = {static_cast<size_t>(documents), 2 * static_cast<size_t>(index.num_samples + 1),
                    static_cast<size_t>(index.num_samples)};
  size_t next = 0;
  for_each_array(index, [&](auto& values) {
    values.resize(sizes[next++]);
    get(std::span(values), "the arrays");
  });
  uint32_t expected = 0;
  file.read(at, std::span(&expected, 1), "the checksum");
  if (expected != crc) raise<DataError>("{}: the checksum", where);
  return index;
}

} // namespace

GptIndex cached_gpt_index(const fs::path& folder, std::span<const int32_t> lengths,
                          int64_t first_sequence, const GptIndexOptions& options) {
  const std::string made_from = describe(lengths, first_sequence, options);
  const fs::path path = folder / file_name(made_from);
  std::error_code error;
  if (fs::exists(path, error)) {
    try {
      if (std::optional<GptIndex> index = read(path, made_from)) return std::move(*index);
    } catch (const DataError& damage) {
      log::warning("the index cache is damaged and made again: {}", damage.what());
    }
  }
  GptIndex index = build_gpt_index(lengths, first_sequence, options);
  try {
    fs::create_directories(folder, error);
    write(path, made_from, index);
  } catch (const Error& failure) {
    log::warning("dataset.data_cache_path={} is not written: {}", folder.string(), failure.what());
  }
  return index;
}

} // namespace pentatron::data
