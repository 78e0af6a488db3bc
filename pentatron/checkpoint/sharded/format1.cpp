#include "pentatron/checkpoint/sharded/format1.h"

#include <bit>
#include <charconv>

#include <fmt/format.h>

#include "pentatron/base/crc32c.h"
#include "pentatron/base/error.h"
#include "pentatron/base/mapped_file.h"

namespace pentatron::checkpoint {

namespace fs = std::filesystem;

namespace {

constexpr int64_t kFormat1 = 1;

uint32_t parse_crc(const std::string& text, std::string_view where) {
  uint32_t crc = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), crc, 16);
  if (error != std::errc() || text.size() != 8 || end != text.data() + 8)
    raise<CheckpointError>("the checksum in {} is not written as 8 hexadecimal digits", where);
  return crc;
}

/// state.json, whose checksum is that of its compact text without the checksum.
Json read_state_json(const fs::path& path) {
  const std::string where = path.string();
  Json state = read_json(path);
  const auto format = json_get<int64_t>(state, "format", where);
  if (format != kFormat1)
    raise<CheckpointError>("{} has format {}, this program reads {} to {}", where, format, kFormat1,
                           kContainerFormat);
  const auto crc = json_get<std::string>(state, "crc32c", where);
  state.erase("crc32c");
  const std::string text = dump_json(state);
  if (crc != fmt::format("{:08x}", crc32c(std::as_bytes(std::span(text)))))
    raise<CheckpointError>("{} is damaged: its checksum differs", where);
  return state;
}

void add_entries(const fs::path& path, FileDescription& description) {
  const SafetensorsFile file(path);
  for (const auto& [name, tensor] : file.tensors()) {
    description.tensors.emplace(name, TensorInfo{.dtype = tensor.dtype, .shape = tensor.shape});
    const auto begin = static_cast<uint64_t>(tensor.data.data() - file.file().bytes().data());
    description.file.entries.emplace(name,
                                     Entry{.begin = begin, .boxes = {whole_box(tensor.shape)}});
  }
}

Manifest read_checked(const fs::path& folder) {
  const fs::path path = folder / kFormat1Name;
  const std::string where = path.string();
  const Json state = read_state_json(path);
  Manifest manifest;
  manifest.format = kFormat1;
  manifest.iteration = json_get<int64_t>(state, "iteration", where);
  manifest.config_yaml = json_get<std::string>(state, "config", where);
  manifest.state = state;
  for (const char* member : {"config", "files", "format"}) manifest.state.erase(member);
  const Json files = state.value("files", Json::object());
  if (!files.is_object()) raise<CheckpointError>("{} has no files", where);
  for (const auto& [name, written] : files.items()) {
    FileDescription description{.name = name, .file = {}, .tensors = {}};
    const auto bytes = json_get<int64_t>(written, "bytes", where);
    const uint32_t crc = parse_crc(json_get<std::string>(written, "crc32c", where), where);
    if (!is_shard_name(name)) raise<CheckpointError>("{} lists a file '{}'", where, name);
    std::error_code error;
    const auto size = fs::file_size(folder / name, error);
    if (error || static_cast<int64_t>(size) != bytes)
      raise<CheckpointError>("{} is damaged: it has {} bytes and not {}", (folder / name).string(),
                             error ? 0 : size, bytes);
    description.file.bytes = size;
    description.file.chunk_bytes = std::max(kMinChunk, std::bit_ceil(size));
    description.file.crcs = {crc};
    add_entries(folder / name, description);
    add_file(manifest, std::move(description));
  }
  check_manifest(manifest, where);
  return manifest;
}

} // namespace

std::string read_small_file(const fs::path& path, size_t max_bytes) {
  try {
    const MappedFile file(path);
    if (file.size() > max_bytes)
      raise<CheckpointError>("{} has {} bytes, above the limit of {}", path.string(), file.size(),
                             max_bytes);
    std::string text(file.text());
    file.check_size();
    return text;
  } catch (const DataError& error) {
    throw CheckpointError(error.what());
  }
}

Manifest read_format1(const fs::path& folder) {
  try {
    return read_checked(folder);
  } catch (const DataError& error) {
    throw CheckpointError(error.what());
  }
}

} // namespace pentatron::checkpoint
