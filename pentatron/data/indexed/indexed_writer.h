/// Writes an indexed dataset (format.h), byte for byte what megatron-core's IndexedDatasetBuilder
/// writes from the same ids.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "pentatron/data/indexed/data_file.h"
#include "pentatron/data/indexed/format.h"

namespace pentatron::data {

/// The files of a corpus. Throws ConfigError if the prefix does not end in a name.
std::vector<std::filesystem::path> corpus_files(const std::string& prefix);
/// Throws ConfigError if PREFIX.bin or PREFIX.idx is there and the two are no corpus.
void require_corpus(const std::string& prefix);

/// PREFIX.bin and PREFIX.idx appear whole with commit() or not at all: until then everything lies
/// in a folder beside them. Memory does not grow with the corpus.
class IndexedWriter {
 public:
  /// How much of each file is good: what a resumed writer begins with.
  struct Position {
    int64_t tokens = 0;
    int64_t sequences = 0;
    int64_t documents = 0;
  };
  struct Options {
    IndexedDtype dtype = IndexedDtype::kU16;
    bool modes = false;
    /// The folder beside; empty for one of its own that vanishes without commit(). A folder named
    /// here stays, so that another writer can resume from it.
    std::filesystem::path folder = {};
    std::optional<Position> resume = {};
  };

  IndexedWriter(std::string prefix, const Options& options);
  ~IndexedWriter();
  IndexedWriter(const IndexedWriter&) = delete;
  IndexedWriter& operator=(const IndexedWriter&) = delete;

  /// Throws DataError for a token that the dtype does not hold.
  void add_sequence(std::span<const int32_t> tokens, int8_t mode = 0);
  /// The same from items as they lie in a file of this dtype.
  void add_items(std::span<const std::byte> items, int8_t mode = 0);
  /// Ends a document; one without a sequence is an empty document.
  void end_document();

  const Position& position() const { return position_; }
  /// Returns when the disk has everything up to position().
  void sync();
  /// Everything of commit() that can fail for want of space: afterwards two files need a new name.
  /// Throws DataError if a folder has one of these names.
  void prepare();
  /// Makes PREFIX.bin and PREFIX.idx, replacing what was there.
  void commit();
  /// Ends the commit of another process that was killed with the last file yet to be put in place;
  /// false if `folder` is in no such state.
  static bool finish_commit(const std::string& prefix, const std::filesystem::path& folder);

 private:
  void write_index(const std::filesystem::path& path);

  std::string prefix_;
  Options options_;
  std::filesystem::path folder_;
  int64_t item_bytes_;
  Position position_;
  std::vector<std::byte> items_;
  std::unique_ptr<AppendFile> data_;
  std::unique_ptr<AppendFile> lengths_;
  std::unique_ptr<AppendFile> documents_;
  std::unique_ptr<AppendFile> modes_;
  bool prepared_ = false, committed_ = false;
};

} // namespace pentatron::data
