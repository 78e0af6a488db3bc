// A pair of .idx and .bin that opens is read whole without harm, and written again is the same.
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "pentatron/base/error.h"
#include "pentatron/data/indexed/indexed_dataset.h"
#include "tests/support/files.h"

namespace {

void write(const std::string& name, const char* bytes, size_t size) {
  std::ofstream(name, std::ios::binary).write(bytes, static_cast<std::streamsize>(size));
}

} // namespace

// The first two bytes say how long the index is; the rest is index, then tokens.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace pentatron;
  if (size < 2) return 0;
  const auto* bytes = reinterpret_cast<const char*>(data) + 2;
  size -= 2;
  const size_t index_size = std::min<size_t>(size, data[0] + 256u * data[1]);
  static const TemporaryFolder folder(folder_in_memory());
  const std::string prefix = (folder.path() / "x").string();
  write(prefix + ".idx", bytes, index_size);
  write(prefix + ".bin", bytes + index_size, size - index_size);
  try {
    const data::IndexedDataset corpus(prefix);
    int64_t total = 0;
    for (int64_t i = 0; i < corpus.num_sequences(); ++i) {
      const data::IndexedDataset::Sequence sequence = corpus.sequence(i);
      if (sequence.first_token != total || sequence.length < 0) __builtin_trap();
      total += sequence.length;
      std::vector<std::byte> items(
          static_cast<size_t>(sequence.length * data::item_bytes(corpus.dtype())));
      corpus.read_items(sequence.first_token, items);
      if (data::is_integer(corpus.dtype())) {
        std::vector<int64_t> tokens(static_cast<size_t>(sequence.length));
        corpus.read_tokens(sequence.first_token, sequence.length, tokens.data());
      }
      if (corpus.has_modes()) corpus.mode(i);
    }
    if (total != corpus.num_tokens()) __builtin_trap();
    int64_t before = 0;
    for (int64_t d = 0; d <= corpus.num_documents(); ++d) {
      const int64_t begin = corpus.document_begin(d);
      if (begin < before || begin > total) __builtin_trap();
      before = begin;
    }
    if (before != total) __builtin_trap();
  } catch (const DataError&) {
  }
  return 0;
}
