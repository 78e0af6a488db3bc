#include "pentatron/checkpoint/sharded/manifest.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "pentatron/base/crc32c.h"
#include "pentatron/base/error.h"
#include "pentatron/base/text.h"
#include "pentatron/checkpoint/sharded/expert_choices.h"

namespace pentatron::checkpoint {

namespace fs = std::filesystem;

namespace {

constexpr uint64_t kMaxBytes = uint64_t{1} << 60;
constexpr JsonLimits kLimits{.max_bytes = size_t{1} << 30, .max_depth = 64};
constexpr size_t kMaxName = 512, kMaxFileName = 255;
constexpr std::string_view kSuffix = ".safetensors";

std::string json_text(std::string_view text) {
  return dump_json(std::string(text));
}

std::string hex(std::span<const uint32_t> crcs) {
  std::string text;
  text.reserve(8 * crcs.size());
  for (const uint32_t crc : crcs) fmt::format_to(std::back_inserter(text), "{:08x}", crc);
  return text;
}

/// Lower case only, so that one text stands for one list.
std::vector<uint32_t> parse_hex(std::string_view text, std::string_view where) {
  std::vector<uint32_t> crcs;
  const auto is_digit = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
  if (text.size() % 8 != 0 || !std::ranges::all_of(text, is_digit))
    raise<CheckpointError>("the checksums of {} are not written as 8 hexadecimal digits each",
                           where);
  crcs.reserve(text.size() / 8);
  for (size_t i = 0; i < text.size(); i += 8) {
    uint32_t crc = 0;
    std::from_chars(text.data() + i, text.data() + i + 8, crc, 16);
    crcs.push_back(crc);
  }
  return crcs;
}

std::string box_list(const std::vector<Box>& boxes) {
  std::string text;
  for (const Box& box : boxes)
    fmt::format_to(std::back_inserter(text), "{}[[{}],[{}]]", text.empty() ? "" : ",",
                   fmt::join(box.offset, ","), fmt::join(box.size, ","));
  return fmt::format("[{}]", text);
}

/// With a comma before it.
std::string shape_text(const TensorInfo& info) {
  return fmt::format(R"(,"dtype":"{}","shape":[{}])", name_of(info.dtype),
                     fmt::join(info.shape, ","));
}

std::string chunks_text(const FileInfo& file) {
  return fmt::format(R"("bytes":{},"chunk_bytes":{},"crc32c":"{}")", file.bytes, file.chunk_bytes,
                     hex(file.crcs));
}

/// Without the tensors, or with dtype and shape in each entry.
std::string file_text(const FileInfo& file, const TensorInfos* tensors) {
  std::string text = fmt::format(R"({{{},"entries":{{)", chunks_text(file));
  const char* separator = "\n    ";
  for (const auto& [name, entry] : file.entries) {
    fmt::format_to(std::back_inserter(text), R"({}{}:{{"begin":{},"boxes":{}{}}})", separator,
                   json_text(name), entry.begin, box_list(entry.boxes),
                   tensors ? shape_text(tensors->find(name)->second) : "");
    separator = ",\n    ";
  }
  return text + "}}";
}

void expect_members(const Json& json, std::initializer_list<std::string_view> names,
                    std::string_view where) {
  if (!json.is_object()) raise<CheckpointError>("{} is not an object", where);
  for (const auto& [key, value] : json.items()) {
    if (std::ranges::find(names, key) == names.end())
      raise<CheckpointError>("{} has an unknown field \"{}\"", where, excerpt(key));
  }
}

uint64_t get_size(const Json& json, std::string_view key, std::string_view where) {
  const auto value = json_get<int64_t>(json, key, where);
  if (value < 0 || static_cast<uint64_t>(value) > kMaxBytes)
    raise<CheckpointError>("\"{}\" in {} is {}, out of range", key, where, value);
  return static_cast<uint64_t>(value);
}

Attachment parse_attachment(const Json& json, std::string_view where) {
  expect_members(json, {"bytes", "crc32c"}, where);
  const std::vector<uint32_t> crcs = parse_hex(json_get<std::string>(json, "crc32c", where), where);
  if (crcs.size() != 1) raise<CheckpointError>("{} has {} checksums", where, crcs.size());
  return {.bytes = get_size(json, "bytes", where), .crc = crcs[0]};
}

TensorInfo parse_tensor(const Json& json, std::string_view where) {
  return {.dtype = safe_dtype_from_name(json_get<std::string>(json, "dtype", where)),
          .shape = json_get<std::vector<int64_t>>(json, "shape", where)};
}

std::vector<Box> parse_boxes(const Json& json, std::string_view where) {
  std::vector<Box> boxes;
  const auto list = json_get<std::vector<std::vector<std::vector<int64_t>>>>(json, "boxes", where);
  for (const auto& pair : list) {
    if (pair.size() != 2 || pair[0].size() != pair[1].size() || pair[0].size() > kMaxDims)
      raise<CheckpointError>("a box in {} is not a pair of lists of equal length", where);
    boxes.push_back({.offset = pair[0], .size = pair[1]});
  }
  return boxes;
}

const Json& get_object(const Json& json, const char* key, std::string_view where) {
  const auto it = json.find(key);
  if (it == json.end() || !it->is_object())
    raise<CheckpointError>("{} has no object \"{}\"", where, key);
  return *it;
}

/// A file but for its entries.
FileInfo parse_chunks(const Json& json, std::string_view where) {
  FileInfo file;
  file.bytes = get_size(json, "bytes", where);
  file.chunk_bytes = get_size(json, "chunk_bytes", where);
  if (file.chunk_bytes < kMinChunk || !std::has_single_bit(file.chunk_bytes))
    raise<CheckpointError>("\"chunk_bytes\" in {} is {}, but must be a power of two of at least {}",
                           where, file.chunk_bytes, kMinChunk);
  file.crcs = parse_hex(json_get<std::string>(json, "crc32c", where), where);
  return file;
}

ParityFile parse_parity(const Json& json, std::string_view where) {
  expect_members(json, {"bytes", "chunk_bytes", "crc32c", "row", "shards"}, where);
  return {.file = parse_chunks(json, where),
          .row = get_size(json, "row", where),
          .shards = json_get<std::vector<std::string>>(json, "shards", where)};
}

/// `tensors`, if given, takes dtype and shape from the entries.
FileInfo parse_file(const Json& json, std::string_view where, TensorInfos* tensors) {
  FileInfo file = parse_chunks(json, where);
  for (const auto& [name, item] : get_object(json, "entries", where).items()) {
    const std::string entry_where = fmt::format("{}, tensor {}", where, excerpt(name));
    if (tensors != nullptr) {
      expect_members(item, {"begin", "boxes", "dtype", "shape"}, entry_where);
      tensors->emplace(name, parse_tensor(item, entry_where));
    } else {
      expect_members(item, {"begin", "boxes"}, entry_where);
    }
    file.entries.emplace(name, Entry{.begin = get_size(item, "begin", entry_where),
                                     .boxes = parse_boxes(item, entry_where)});
  }
  return file;
}

void check_chunks(const FileInfo& file, std::string_view where) {
  if (file.chunk_bytes == 0 || file.bytes > kMaxBytes || file.crcs.size() != file.num_chunks())
    raise<CheckpointError>("{} has {} checksums for {} bytes in chunks of {}", where,
                           file.crcs.size(), file.bytes, file.chunk_bytes);
}

/// A parity file is as long as the longest of its shards, and a shard is in one group.
void check_parity(const Manifest& manifest, std::string_view origin) {
  std::map<std::string_view, const ParityFile*> group_of;
  std::map<std::string_view, std::vector<bool>> rows;
  for (const auto& [name, parity] : manifest.parity) {
    const std::string where = fmt::format("{}: file {}", origin, excerpt(name));
    if (!is_parity_name(name))
      raise<CheckpointError>("{} is not a plain name that ends in {}", where, kParitySuffix);
    check_chunks(parity.file, where);
    if (parity.row >= kMaxParity || parity.shards.empty() ||
        parity.shards.size() > 255 - kMaxParity)
      raise<CheckpointError>("{} is row {} of {} shards", where, parity.row, parity.shards.size());
    uint64_t longest = 0;
    for (const std::string& shard : parity.shards) {
      const auto file = manifest.files.find(shard);
      const ParityFile*& group = group_of.emplace(shard, &parity).first->second;
      if (file == manifest.files.end() || group->shards != parity.shards)
        raise<CheckpointError>("{} covers {}, which is not a shard or is in another group", where,
                               excerpt(shard));
      longest = std::max(longest, file->second.bytes);
    }
    std::vector<bool>& known = rows[parity.shards[0]];
    known.resize(kMaxParity);
    if (known[parity.row] || parity.file.bytes != longest ||
        std::set(parity.shards.begin(), parity.shards.end()).size() != parity.shards.size())
      raise<CheckpointError>("{} repeats a row or a shard, or its size differs from its shards",
                             where);
    known[parity.row] = true;
  }
  for (const auto& [shard, known] : rows) {
    if (std::ranges::is_sorted(known, std::greater())) continue;
    raise<CheckpointError>("{}: a row of the parity of {} is missing", origin, excerpt(shard));
  }
}

/// Entries lie in the file, do not overlap, and each box lies in its tensor.
void check_file(const std::string& name, const FileInfo& file, const Manifest& manifest,
                std::string_view origin) {
  const std::string where = fmt::format("{}: file {}", origin, excerpt(name));
  if (!is_shard_name(name))
    raise<CheckpointError>("{} is not a plain name that ends in {}", where, kSuffix);
  check_chunks(file, where);
  struct Place {
    uint64_t begin = 0, end = 0;
    const std::string* name = nullptr;
  };
  std::vector<Place> places;
  for (const auto& [tensor, entry] : file.entries) {
    const auto info = manifest.tensors.find(tensor);
    if (info == manifest.tensors.end())
      raise<CheckpointError>("{} contains {}, which is not in the list of tensors", where,
                             excerpt(tensor));
    uint64_t bytes = 0; // below 2^60 at every step
    for (const Box& box : entry.boxes) {
      if (!fits(box, info->second.shape))
        raise<CheckpointError>("{}: box {} of {} is outside its shape [{}]", where, to_text(box),
                               excerpt(tensor), fmt::join(info->second.shape, ", "));
      bytes += static_cast<uint64_t>(numel(box)) * size_of(info->second.dtype);
      if (bytes > file.bytes) break;
    }
    if (entry.begin > file.bytes || bytes > file.bytes - entry.begin)
      raise<CheckpointError>("{}: {} ends after the end of the file, which has {} bytes", where,
                             excerpt(tensor), file.bytes);
    places.push_back({.begin = entry.begin, .end = entry.begin + bytes, .name = &tensor});
  }
  std::ranges::sort(places, {}, [](const Place& p) { return std::pair(p.begin, p.end); });
  for (size_t i = 1; i < places.size(); ++i) {
    if (places[i].begin < places[i - 1].end)
      raise<CheckpointError>("{}: {} and {} overlap", where, excerpt(*places[i - 1].name),
                             excerpt(*places[i].name));
  }
}

/// A box and where it comes from.
struct Sources {
  std::vector<const Box*> boxes;
  std::vector<const std::string*> files;
};

void check_tiling(const std::string& name, const TensorInfo& info, const Sources& sources,
                  std::string_view origin) {
  const auto fault = find_tiling_fault(info.shape, sources.boxes);
  if (!fault) return;
  std::string covering;
  for (const size_t i : fault->boxes)
    covering += fmt::format("{}{} of {}", covering.empty() ? ": " : " and ",
                            to_text(*sources.boxes[i]), *sources.files[i]);
  if (fault->times <= 0)
    raise<CheckpointError>("{}: {} [{}] is incomplete, element [{}] is in no file", origin,
                           excerpt(name), fmt::join(info.shape, ", "),
                           fmt::join(fault->element, ", "));
  raise<CheckpointError>("{}: element [{}] of {} [{}] is stored {} times{}", origin,
                         fmt::join(fault->element, ", "), excerpt(name),
                         fmt::join(info.shape, ", "), fault->times, covering);
}

/// The checksum is the last member: `text` before it, then this.
std::string own_checksum(std::string_view before) {
  return fmt::format(",\n\"crc32c\":\"{:08x}\"}}\n", crc32c(std::as_bytes(std::span(before))));
}

Manifest parse_checked_text(std::string_view text, std::string_view origin) {
  const size_t tail = own_checksum("").size();
  if (text.size() < tail ||
      text.substr(text.size() - tail) != own_checksum(text.substr(0, text.size() - tail)))
    raise<CheckpointError>("{} is corrupted: its checksum does not match", origin);
  const Json json = parse_json(text, origin, kLimits);
  if (!json.is_object()) raise<CheckpointError>("{} is not an object", origin);
  Manifest manifest;
  manifest.format = json_get<int64_t>(json, "format", origin);
  if (manifest.format != kManifestFormat)
    raise<CheckpointError>("{} has format {}, but this version reads format {}", origin,
                           manifest.format, kManifestFormat);
  expect_members(json,
                 {"format", "iteration", "state", "config", "tokenizer", "attachments", "parity",
                  "tensors", "files", "crc32c"},
                 origin);
  manifest.iteration = json_get<int64_t>(json, "iteration", origin);
  manifest.state = get_object(json, "state", origin);
  manifest.config_yaml = json_get<std::string>(json, "config", origin);
  manifest.tokenizer = json_get<std::string>(json, "tokenizer", origin);
  for (const auto& [name, item] : get_object(json, "attachments", origin).items())
    manifest.attachments.emplace(
        name, parse_attachment(item, fmt::format("{}, file {}", origin, excerpt(name))));
  for (const auto& [name, item] : get_object(json, "tensors", origin).items()) {
    const std::string where = fmt::format("{}, tensor {}", origin, excerpt(name));
    expect_members(item, {"dtype", "shape"}, where);
    manifest.tensors.emplace(name, parse_tensor(item, where));
  }
  for (const auto& [name, item] : get_object(json, "files", origin).items()) {
    const std::string where = fmt::format("{}, file {}", origin, excerpt(name));
    expect_members(item, {"bytes", "chunk_bytes", "crc32c", "entries"}, where);
    manifest.files.emplace(name, parse_file(item, where, nullptr));
  }
  if (json.contains("parity")) {
    for (const auto& [name, item] : get_object(json, "parity", origin).items())
      manifest.parity.emplace(
          name, parse_parity(item, fmt::format("{}, file {}", origin, excerpt(name))));
  }
  check_manifest(manifest, origin);
  return manifest;
}

bool is_file_name(std::string_view name, std::string_view suffix) {
  return is_tensor_name(name) && name.size() <= kMaxFileName && name.ends_with(suffix) &&
         name.front() != '.' && name.find_first_of("/\\") == std::string_view::npos;
}

} // namespace

int64_t Entry::numel() const {
  int64_t sum = 0;
  for (const Box& box : boxes) sum += checkpoint::numel(box);
  return sum;
}

bool is_tensor_name(std::string_view name) {
  return !name.empty() && name.size() <= kMaxName && is_utf8(name) && name != "__metadata__" &&
         std::ranges::none_of(name, [](unsigned char c) { return c < 0x20 || c == 0x7f; });
}

bool is_shard_name(std::string_view name) {
  return is_file_name(name, kSuffix);
}

bool is_parity_name(std::string_view name) {
  return is_file_name(name, kParitySuffix);
}

std::string to_text(const FileDescription& description) {
  return fmt::format("{{\"name\":{},\"file\":{}}}", json_text(description.name),
                     file_text(description.file, &description.tensors));
}

FileDescription parse_file_description(std::string_view text, std::string_view origin) {
  try {
    const Json json = parse_json(text, origin, kLimits);
    FileDescription description;
    description.name = json_get<std::string>(json, "name", origin);
    const std::string where = fmt::format("{}, file {}", origin, excerpt(description.name));
    description.file = parse_file(get_object(json, "file", origin), where, &description.tensors);
    return description;
  } catch (const DataError& error) {
    throw CheckpointError(error.what());
  }
}

void add_file(Manifest& manifest, FileDescription description) {
  for (auto& [name, info] : description.tensors) {
    const auto [it, added] = manifest.tensors.emplace(name, info);
    if (!added && it->second != info)
      raise<CheckpointError>("{} is {} [{}] in {}, but {} [{}] in another file", excerpt(name),
                             name_of(info.dtype), fmt::join(info.shape, ", "), description.name,
                             name_of(it->second.dtype), fmt::join(it->second.shape, ", "));
  }
  if (!manifest.files.emplace(description.name, std::move(description.file)).second)
    raise<CheckpointError>("two ranks wrote {}", excerpt(description.name));
}

void check_manifest(const Manifest& manifest, std::string_view origin) {
  if (manifest.iteration < 0)
    raise<CheckpointError>("{} has iteration {}", origin, manifest.iteration);
  for (const auto& [name, info] : manifest.tensors) {
    const auto count = checked_numel(info.shape);
    if (!is_tensor_name(name))
      raise<CheckpointError>("{}: '{}' is not a valid tensor name", origin, excerpt(name));
    if (info.shape.size() > kMaxDims || !count ||
        static_cast<uint64_t>(*count) > kMaxBytes / size_of(info.dtype))
      raise<CheckpointError>("{}: {} has an invalid shape", origin, excerpt(name));
  }
  uint64_t attached = 0;
  for (const auto& [name, attachment] : manifest.attachments) {
    if (!is_attachment_name(name))
      raise<CheckpointError>("{}: '{}' is not a valid name for a file in a checkpoint", origin,
                             excerpt(name));
    attached += attachment.bytes;
    if (attached > kMaxAttachmentBytes || manifest.attachments.size() > kMaxAttachments)
      raise<CheckpointError>("{} lists too many files without tensors, or files that are too large",
                             origin);
  }
  std::map<std::string_view, Sources> sources;
  for (const auto& [name, file] : manifest.files) {
    check_file(name, file, manifest, origin);
    for (const auto& [tensor, entry] : file.entries) {
      Sources& of = sources[tensor];
      for (const Box& box : entry.boxes) {
        of.boxes.push_back(&box);
        of.files.push_back(&name);
      }
    }
  }
  for (const auto& [name, info] : manifest.tensors) check_tiling(name, info, sources[name], origin);
  check_parity(manifest, origin);
  expert_choices(manifest, origin);
}

std::string to_text(const Manifest& manifest) {
  std::string text = fmt::format(
      "{{\"format\":{},\n\"iteration\":{},\n\"state\":{},\n\"config\":{},\n\"tokenizer\":{},\n",
      manifest.format, manifest.iteration, dump_json(manifest.state),
      json_text(manifest.config_yaml), json_text(manifest.tokenizer));
  const char* separator = "\"attachments\":{\n  ";
  for (const auto& [name, attachment] : manifest.attachments) {
    fmt::format_to(std::back_inserter(text), R"({}{}:{{"bytes":{},"crc32c":"{:08x}"}})", separator,
                   json_text(name), attachment.bytes, attachment.crc);
    separator = ",\n  ";
  }
  text += manifest.attachments.empty() ? "\"attachments\":{},\n" : "},\n";
  separator = "\"tensors\":{\n  ";
  for (const auto& [name, info] : manifest.tensors) {
    fmt::format_to(std::back_inserter(text), "{}{}:{{{}}}", separator, json_text(name),
                   std::string_view(shape_text(info)).substr(1));
    separator = ",\n  ";
  }
  text += manifest.tensors.empty() ? "\"tensors\":{}" : "}";
  separator = ",\n\"files\":{\n  ";
  for (const auto& [name, file] : manifest.files) {
    fmt::format_to(std::back_inserter(text), "{}{}:{}", separator, json_text(name),
                   file_text(file, nullptr));
    separator = ",\n  ";
  }
  text += manifest.files.empty() ? ",\n\"files\":{}" : "}";
  separator = ",\n\"parity\":{\n  ";
  for (const auto& [name, parity] : manifest.parity) {
    fmt::format_to(std::back_inserter(text), R"({}{}:{{{},"row":{},"shards":{}}})", separator,
                   json_text(name), chunks_text(parity.file), parity.row, dump_json(parity.shards));
    separator = ",\n  ";
  }
  if (!manifest.parity.empty()) text += "}";
  return text + own_checksum(text);
}

Manifest parse_manifest(std::string_view text, std::string_view origin) {
  try {
    return parse_checked_text(text, origin);
  } catch (const DataError& error) {
    throw CheckpointError(error.what());
  }
}

Manifest read_manifest(const fs::path& folder) {
  return parse_manifest(read_manifest_text(folder), (folder / kManifestName).string());
}

std::string read_manifest_text(const fs::path& folder) {
  return read_small_file(folder / kManifestName, kLimits.max_bytes);
}

} // namespace pentatron::checkpoint
