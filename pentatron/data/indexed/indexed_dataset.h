/// Reads an indexed dataset, PREFIX.bin and PREFIX.idx (format.h).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "pentatron/data/indexed/data_file.h"
#include "pentatron/data/indexed/format.h"

namespace pentatron::data {

/// Immutable, so that any number of threads may read. Nothing of the size of the corpus is held in
/// memory. All sequences together are one stream of tokens: sequence i is [first_token,
/// first_token + length) of it.
class IndexedDataset {
 public:
  struct Sequence {
    int64_t first_token = 0;
    int64_t length = 0;
  };

  /// Opens both files and checks every number of the index against the others and the sizes of the
  /// files. Throws DataError that names file and field.
  explicit IndexedDataset(const std::string& prefix);

  const std::string& prefix() const { return prefix_; }
  IndexedDtype dtype() const { return dtype_; }
  int64_t num_sequences() const { return num_sequences_; }
  int64_t num_documents() const { return num_document_indices_ - 1; }
  int64_t num_tokens() const { return num_tokens_; }
  bool has_modes() const { return has_modes_; }

  Sequence sequence(int64_t i) const;
  /// Lengths of the sequences from `begin` on.
  void read_lengths(int64_t begin, std::span<int32_t> out) const;
  std::vector<int32_t> lengths(int64_t begin, int64_t end) const;
  /// Entries of document_indices from `begin` on: the first sequence of each document; entry
  /// num_documents() is num_sequences().
  void read_document_indices(int64_t begin, std::span<int64_t> out) const;
  /// Where document i begins in the stream; num_documents() gives num_tokens().
  int64_t document_begin(int64_t i) const;
  /// Throws DataError without modes.
  int8_t mode(int64_t i) const;

  /// Tokens [begin, begin + count) of the stream. Throws DataError for dtypes of floating point,
  /// and for ranges outside the stream.
  void read_tokens(int64_t begin, int64_t count, int64_t* out) const;
  /// Copies items as they are encoded in the file; `out` holds whole items.
  void read_items(int64_t begin, std::span<std::byte> out) const;

  const RandomAccessFile& index_file() const { return index_; }
  const RandomAccessFile& data_file() const { return data_; }

 private:
  [[noreturn]] void bad(std::string_view field, const std::string& what) const;
  void check_range(int64_t begin, int64_t count) const;
  void read_header();
  void check_sequences();
  void check_documents() const;
  uint64_t lengths_at() const { return kIndexHeaderBytes; }
  uint64_t pointers_at() const { return lengths_at() + 4 * static_cast<uint64_t>(num_sequences_); }
  uint64_t documents_at() const {
    return pointers_at() + 8 * static_cast<uint64_t>(num_sequences_);
  }
  uint64_t modes_at() const {
    return documents_at() + 8 * static_cast<uint64_t>(num_document_indices_);
  }

  std::string prefix_;
  RandomAccessFile index_;
  RandomAccessFile data_;
  IndexedDtype dtype_ = IndexedDtype::kI32;
  int64_t item_bytes_ = 0;
  int64_t num_sequences_ = 0;
  int64_t num_document_indices_ = 0;
  int64_t num_tokens_ = 0;
  bool has_modes_ = false;
};

/// The prefix that a user may have written with one of the two endings.
std::string without_ending(std::string prefix);

} // namespace pentatron::data
