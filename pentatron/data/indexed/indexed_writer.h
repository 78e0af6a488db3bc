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

#include "pentatron/base/atomic_file.h"
#include "pentatron/data/indexed/data_file.h"
#include "pentatron/data/indexed/format.h"

namespace pentatron::data {

/// The files of a corpus. Throws ConfigError if the prefix does not end in a name.
std::vector<std::filesystem::path> corpus_files(const std::string& prefix);
/// Throws ConfigError if PREFIX.bin or PREFIX.idx exists and the two are not an intact corpus.
void require_corpus(const std::string& prefix);

/// Writes PREFIX.bin and PREFIX.idx. Both appear, complete, when commit() is called; until then the
/// data is in a folder next to them. Memory use does not depend on the size of the corpus.
class IndexedWriter {
 public:
  /// Valid amount of each file, from which a resumed writer continues.
  struct Position {
    int64_t tokens = 0;
    int64_t sequences = 0;
    int64_t documents = 0;
  };
  struct Options {
    IndexedDtype dtype = IndexedDtype::kU16;
    bool modes = false;
    /// Folder for the unfinished files. If empty, the writer creates a temporary folder, removes it
    /// unless commit() is called, and removes those of killed processes. A folder given here is
    /// kept, so that another writer can resume.
    std::filesystem::path folder = {};
    std::optional<Position> resume = {};
    bool replace = true; ///< whether commit() replaces existing files
  };

  IndexedWriter(std::string prefix, const Options& options);
  ~IndexedWriter();
  IndexedWriter(const IndexedWriter&) = delete;
  IndexedWriter& operator=(const IndexedWriter&) = delete;

  /// Throws DataError for a token that the dtype does not hold.
  void add_sequence(std::span<const int32_t> tokens, int8_t mode = 0);
  /// Adds a sequence whose items are already encoded in this dtype.
  void add_items(std::span<const std::byte> items, int8_t mode = 0);
  /// Ends a document; one without a sequence is an empty document.
  void end_document();

  const Position& position() const { return position_; }
  /// Returns when everything up to position() is durable.
  void sync();
  /// Does all parts of commit() that need disk space; commit() then only renames two files. Throws
  /// DataError if one of the names belongs to a folder.
  void prepare();
  /// Creates PREFIX.bin and PREFIX.idx. Throws DataError if one exists that must not be replaced.
  void commit();
  /// Completes a commit of a process that was killed before it renamed the last file. Returns false
  /// if `folder` does not contain such a commit.
  static bool finish_commit(const std::string& prefix, const std::filesystem::path& folder);

 private:
  void write_index(const std::filesystem::path& path);

  std::string prefix_;
  Options options_;
  std::optional<FolderLock> lock_; // before the folder, which it is of
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
