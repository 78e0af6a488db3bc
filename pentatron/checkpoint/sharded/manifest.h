/// What a checkpoint folder holds: manifest.json in memory, read with limits and written.
///
/// The file is JSON, each member on a separate line, and its last one is the CRC-32C of all bytes
/// before that member:
///   format      3
///   iteration   the step after which it was written
///   state       an object of the caller: consumed samples, optimizer steps and so on
///   config      the configuration as YAML
///   tokenizer   a digest, or ""
///   attachments name -> bytes and crc32c of a file that holds no tensors
///   tensors     name -> dtype and true global shape
///   files       name -> bytes, chunk_bytes, crc32c (8 hexadecimal digits a chunk) and entries:
///               tensor -> begin (byte of the file) and boxes of the tensor ([[offset], [size]])
///   parity      name -> bytes, chunk_bytes and crc32c as of a file, row, and shards: the names of
///               the files that it is made of (parity.h)
///   crc32c
/// The boxes of an entry are stored one after the other, each row-major. Over all files they tile
/// every tensor exactly once.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "pentatron/base/json.h"
#include "pentatron/base/safetensors.h"
#include "pentatron/checkpoint/sharded/attachments.h"
#include "pentatron/checkpoint/sharded/geometry.h"

namespace pentatron::checkpoint {

inline constexpr int64_t kManifestFormat = 3;
inline constexpr const char* kManifestName = "manifest.json";
inline constexpr uint64_t kMinChunk = uint64_t{1} << 12;
/// Large enough for few checksums and system calls, small enough to stay in the cache between the
/// checksum and the copy: 256 KiB to 4 MiB measure alike.
inline constexpr uint64_t kDefaultChunk = uint64_t{1} << 20;

struct TensorInfo {
  SafeDtype dtype = SafeDtype::kF32;
  std::vector<int64_t> shape; ///< true and global
  bool operator==(const TensorInfo&) const = default;
  uint64_t bytes() const { return static_cast<uint64_t>(numel(shape)) * size_of(dtype); }
};
using TensorInfos = std::map<std::string, TensorInfo, std::less<>>;

/// A part of one tensor in one file.
struct Entry {
  uint64_t begin = 0; ///< byte of the file
  std::vector<Box> boxes;
  int64_t numel() const;
};

struct FileInfo {
  uint64_t bytes = 0;
  uint64_t chunk_bytes = kDefaultChunk;
  std::vector<uint32_t> crcs; ///< of the chunks, the last one shorter
  std::map<std::string, Entry, std::less<>> entries;
  size_t num_chunks() const { return static_cast<size_t>((bytes + chunk_bytes - 1) / chunk_bytes); }
};

inline constexpr size_t kMaxParity = 16; ///< parity files of a group of shards
inline constexpr const char* kParitySuffix = ".parity";
struct ParityFile {
  FileInfo file; ///< without entries
  size_t row = 0;
  std::vector<std::string> shards;
};

struct Manifest {
  int64_t format = kManifestFormat;
  int64_t iteration = 0;
  Json state = Json::object();
  std::string config_yaml;
  std::string tokenizer;
  Attachments attachments;
  TensorInfos tensors;
  std::map<std::string, FileInfo, std::less<>> files;
  std::map<std::string, ParityFile, std::less<>> parity;
};

/// Description of a file that a rank wrote, sent as text to the rank that writes the manifest.
struct FileDescription {
  std::string name;
  FileInfo file;
  TensorInfos tensors; ///< of the entries
};
std::string to_text(const FileDescription& description);
/// Throws CheckpointError.
FileDescription parse_file_description(std::string_view text, std::string_view origin);

/// Adds a file to the manifest. Throws CheckpointError for a repeated file and for a tensor whose
/// dtype or shape differs from that in another file.
void add_file(Manifest& manifest, FileDescription description);

/// Throws CheckpointError unless names, sizes and places are within limits and the boxes tile every
/// tensor exactly once; names tensor, element and files. `origin` names the manifest.
void check_manifest(const Manifest& manifest, std::string_view origin);

std::string to_text(const Manifest& manifest);
/// Any bytes; throws CheckpointError unless it is a manifest that check_manifest() accepts.
Manifest parse_manifest(std::string_view text, std::string_view origin);
/// The manifest of a folder. Throws CheckpointError.
Manifest read_manifest(const std::filesystem::path& folder);
/// The bytes of a folder's manifest.json, whatever they are. Throws CheckpointError.
std::string read_manifest_text(const std::filesystem::path& folder);

/// Whether the text is well-formed UTF-8 of 1 to 512 bytes without control characters.
bool is_tensor_name(std::string_view name);
/// Whether the name is one of a file in the folder itself, ending in .safetensors.
bool is_shard_name(std::string_view name);
/// Whether the name is one of a file in the folder itself, ending in .parity.
bool is_parity_name(std::string_view name);

} // namespace pentatron::checkpoint
