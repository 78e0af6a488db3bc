// Whatever lies in a cache of sample orders, with a right checksum: tokens of the corpus come from
// it, or a DataError, and nothing beside the arrays is read or written.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "pentatron/base/crc32c.h"
#include "pentatron/base/error.h"
#include "pentatron/data/gpt/gpt_dataset.h"
#include "pentatron/data/gpt/index_cache.h"
#include "pentatron/data/indexed/indexed_writer.h"
#include "tests/support/files.h"

namespace {

using namespace pentatron;
using namespace pentatron::data;

/// Five sequences, and a file with the order of the samples of the last four.
struct Cache {
  const TemporaryFolder folder{folder_in_memory()};
  const std::string prefix = (folder.path() / "corpus").string();
  const std::filesystem::path orders = folder.path() / "orders";
  const GptIndexOptions options{.sequence_length = 4, .num_samples = 14};
  std::shared_ptr<const IndexedDataset> corpus;
  SequenceLengths lengths;
  std::filesystem::path file;

  Cache() {
    IndexedWriter writer(prefix, {});
    for (const int32_t length : {3, 9, 1, 4, 6}) {
      writer.add_sequence(std::vector<int32_t>(static_cast<size_t>(length), length));
      writer.end_document();
    }
    writer.commit();
    corpus = std::make_shared<const IndexedDataset>(prefix);
    lengths = {
        .first_sequence = 1, .count = 4, .read = [this](int64_t begin, std::span<int32_t> out) {
          corpus->read_lengths(1 + begin, out);
        }};
    cached_gpt_index(orders, lengths, options);
    for (const auto& entry : std::filesystem::directory_iterator(orders))
      if (entry.path().extension() == ".gptindex") file = entry.path();
  }
};

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Cache cache;
  const uint32_t crc = crc32c(std::as_bytes(std::span(data, size)));
  std::ofstream(cache.file, std::ios::binary)
      .write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size))
      .write(reinterpret_cast<const char*>(&crc), sizeof crc);
  const GptDataset samples(
      cache.corpus,
      shared_gpt_index(cache.orders, cache.lengths, cache.options, /*read_only=*/true), 16);
  if (samples.sequence_length() != cache.options.sequence_length ||
      samples.size() < cache.options.num_samples)
    __builtin_trap();
  for (int64_t n = 0; n < *samples.size(); ++n) {
    std::vector<int64_t> tokens(static_cast<size_t>(samples.sequence_length() + 1));
    try {
      samples.sample(n, tokens.data());
      if (std::ranges::any_of(tokens, [](int64_t t) { return t < 0 || t > 9; })) __builtin_trap();
    } catch (const DataError&) {
    }
  }
  return 0;
}
