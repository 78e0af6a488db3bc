/// Reads any part of any tensor of a checkpoint, whatever the layout it was written in.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "pentatron/base/io_thread.h"
#include "pentatron/base/mapped_file.h"
#include "pentatron/checkpoint/sharded/manifest.h"
#include "pentatron/checkpoint/sharded/shard_file.h"

namespace pentatron::checkpoint {

/// The manifest is checked as a whole when the reader is made, files are opened when a tensor in
/// them is read. What is read is checked against the checksums of exactly the chunks it touches,
/// each chunk once. To be used by one thread at a time (long reads have a second one help);
/// several readers of one folder are fine.
///
/// Throws CheckpointError; about damaged data it names file, chunk and tensor.
class CheckpointReader {
 public:
  explicit CheckpointReader(const std::filesystem::path& folder);
  ~CheckpointReader();

  const Manifest& manifest() const { return manifest_; }
  const std::filesystem::path& folder() const { return folder_; }

  bool contains(std::string_view name) const { return manifest_.tensors.contains(name); }
  /// dtype and shape; throws with the nearest name.
  const TensorInfo& info(std::string_view name) const;
  /// Those of `names` that the checkpoint lacks.
  std::vector<std::string> missing(std::span<const std::string> names) const;
  /// Those that the checkpoint holds beyond `names`.
  std::vector<std::string> unexpected(std::span<const std::string> names) const;

  /// The elements of `box`, row-major, in the dtype of the checkpoint.
  void read(std::string_view name, const Box& box, std::span<std::byte> target);
  /// Reads into memory with strides (in elements); `target` begins at the first element.
  void read(std::string_view name, const Box& box, std::span<std::byte> target,
            std::span<const int64_t> strides);
  /// The whole tensor.
  std::vector<std::byte> read(std::string_view name);

  struct Wanted {
    std::string name;
    Box box;
  };
  /// Where elements lie in a mapped file, as long as that is held.
  struct Mapped {
    std::shared_ptr<const MappedFile> file;
    std::span<const std::byte> bytes;
  };
  /// Without a copy, in memory that may be written to (which the file does not see): what is
  /// wanted, where its elements lie in one row in one file, aligned to their size; else nothing.
  /// All chunks that it touches are checked, each once. If another program shortens the file while
  /// it is mapped, touching what is gone raises SIGBUS.
  std::vector<std::optional<Mapped>> map(std::span<const Wanted> wanted);

  /// Adds the files that hold elements of `box`.
  void add_files(std::string_view name, const Box& box, std::set<std::string>& files) const;

  const Attachments& attachments() const { return manifest_.attachments; }
  /// Returns the whole file. Throws if it is damaged or does not exist; the message then suggests
  /// the nearest name.
  std::string read_attachment(std::string_view name) const;

  /// Called again and again while something is read, by any thread.
  void on_progress(std::function<void()> call) { progress_ = std::move(call); }

  /// Bytes that were read from files so far.
  uint64_t bytes_read() const { return bytes_read_; }

 private:
  struct OpenFile;
  struct Source {
    OpenFile* file = nullptr;
    const Box* box = nullptr;
    uint64_t begin = 0; ///< byte of the file
  };
  /// Neighbouring bytes of a file and where they go.
  struct Piece {
    uint64_t at = 0, size = 0;
    std::byte* target = nullptr;
  };
  /// Runs `work` for all of [first, last), whichever of two threads is free takes the next.
  void share(size_t first, size_t last, const std::function<void(size_t)>& work);
  const std::shared_ptr<const MappedFile>& map_file(OpenFile& file);
  void read_part(const Source& source, const Box& part, const Box& box, std::byte* target,
                 std::span<const int64_t> strides, size_t element);
  void read_pieces(OpenFile& file);
  void read_long(OpenFile& file, const Piece& piece);
  void require_crc(const OpenFile& file, size_t chunk, uint32_t crc) const;
  void check_chunk(OpenFile& file, size_t chunk, uint32_t crc) const;
  void stream_chunk(OpenFile& file, size_t chunk);
  void load(OpenFile& file, uint64_t begin, uint64_t end);
  const ShardFile& open(OpenFile& file);

  std::filesystem::path folder_;
  Manifest manifest_;
  std::vector<std::unique_ptr<OpenFile>> files_;
  size_t num_open_ = 0;
  std::map<std::string_view, std::vector<Source>> sources_;
  std::vector<Piece> pieces_;
  std::vector<std::byte> buffer_; ///< bytes of `buffered_` from `buffer_begin_` on
  const OpenFile* buffered_ = nullptr;
  uint64_t buffer_begin_ = 0, buffer_end_ = 0;
  uint64_t bytes_read_ = 0;
  std::function<void()> progress_;
  std::unique_ptr<IoThreads> helper_; ///< made when a read is long enough
};

} // namespace pentatron::checkpoint
