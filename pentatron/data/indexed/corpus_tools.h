/// Work on whole indexed datasets: put together, take apart, look at, check.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "pentatron/data/indexed/indexed_dataset.h"

namespace pentatron::data {

/// Called now and then with the tokens done and all there are.
using TokenProgress = std::function<void(int64_t done, int64_t total)>;

/// Writes all documents of `prefixes`, one corpus after the other. Throws DataError if dtypes
/// differ, or some have modes and others none.
void merge_corpora(const std::vector<std::string>& prefixes, const std::string& output,
                   const TokenProgress& progress = {}, bool replace = true);

/// OUTPUT_0, OUTPUT_1, ...: the prefixes of so many parts.
std::vector<std::string> names_of_parts(const std::string& output, size_t parts);

/// Cuts the documents into parts by `shares` (of documents, rounded to the nearest), written to
/// these prefixes: all of them or none. Throws ConfigError, before it writes anything, if a part
/// has no documents.
void split_corpus_files(const std::string& prefix, const std::vector<double>& shares,
                        const std::vector<std::string>& parts, const TokenProgress& progress = {},
                        bool replace = true);

struct CorpusSummary {
  IndexedDtype dtype = IndexedDtype::kU16;
  int64_t documents = 0;
  int64_t empty_documents = 0;
  int64_t sequences = 0;
  int64_t tokens = 0;
  int64_t shortest = 0; ///< sequence
  int64_t longest = 0;
  bool modes = false;
  int64_t data_bytes = 0;
  int64_t index_bytes = 0;
};
CorpusSummary summarize_corpus(const IndexedDataset& corpus);

struct CorpusCheck {
  int64_t lowest_token = 0; ///< of integer dtypes
  int64_t highest_token = 0;
  uint32_t data_crc32c = 0;
  uint32_t index_crc32c = 0;
};
/// Reads every byte. With vocab_size > 0, throws DataError at the first token outside [0,
/// vocab_size), with its place.
CorpusCheck verify_corpus(const IndexedDataset& corpus, int64_t vocab_size,
                          const TokenProgress& progress = {});

} // namespace pentatron::data
