#include "pentatron/base/safetensors.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>

#include <fmt/ranges.h>

#include "pentatron/base/error.h"
#include "pentatron/base/json.h"
#include "pentatron/base/nearest.h"
#include "pentatron/base/text.h"

namespace pentatron {

namespace {

constexpr uint64_t kMaxHeader = 100'000'000;
constexpr size_t kLine = 64; ///< of a processor's cache
constexpr size_t kMaxRank = 64;

struct DtypeRow {
  SafeDtype dtype;
  std::string_view name;
  size_t size;
};
constexpr std::array kDtypes = {
    DtypeRow{SafeDtype::kF64, "F64", 8},       DtypeRow{SafeDtype::kF32, "F32", 4},
    DtypeRow{SafeDtype::kF16, "F16", 2},       DtypeRow{SafeDtype::kBF16, "BF16", 2},
    DtypeRow{SafeDtype::kI64, "I64", 8},       DtypeRow{SafeDtype::kI32, "I32", 4},
    DtypeRow{SafeDtype::kI16, "I16", 2},       DtypeRow{SafeDtype::kI8, "I8", 1},
    DtypeRow{SafeDtype::kU64, "U64", 8},       DtypeRow{SafeDtype::kU32, "U32", 4},
    DtypeRow{SafeDtype::kU16, "U16", 2},       DtypeRow{SafeDtype::kU8, "U8", 1},
    DtypeRow{SafeDtype::kBool, "BOOL", 1},     DtypeRow{SafeDtype::kF8E4M3, "F8_E4M3", 1},
    DtypeRow{SafeDtype::kF8E5M2, "F8_E5M2", 1}};

const DtypeRow& row(SafeDtype dtype) {
  return kDtypes[static_cast<size_t>(dtype)];
}

/// shape x element size, if that stays below 2^63 with extents of zero left out: so every stride
/// fits too.
std::optional<uint64_t> byte_size(const std::vector<int64_t>& shape, SafeDtype dtype) {
  int64_t product = static_cast<int64_t>(size_of(dtype));
  bool empty = false;
  for (const int64_t extent : shape) {
    if (extent < 0) return std::nullopt;
    if (extent == 0) {
      empty = true;
    } else if (__builtin_mul_overflow(product, extent, &product)) {
      return std::nullopt;
    }
  }
  return empty ? 0 : static_cast<uint64_t>(product);
}

/// A tensor as the header gives it, with its place checked against its shape but not yet against
/// its neighbours.
struct PlacedTensor {
  std::string name;
  SafeTensor tensor;
  uint64_t begin = 0;
  uint64_t end = 0;
};

PlacedTensor read_entry(const std::string& name, const Json& json, std::string_view origin) {
  const std::string where = fmt::format("tensor '{}' of {}", excerpt(name), origin);
  if (!json.is_object()) raise<DataError>("{} is not described by a JSON object", where);
  if (json.size() != 3) {
    raise<DataError>("{} has members other than dtype, shape and data_offsets", where);
  }
  PlacedTensor placed;
  placed.name = name;
  placed.tensor.dtype = safe_dtype_from_name(json_get<std::string>(json, "dtype", where));
  placed.tensor.shape = json_get<std::vector<int64_t>>(json, "shape", where);
  const auto offsets = json_get<std::vector<int64_t>>(json, "data_offsets", where);
  const auto size = byte_size(placed.tensor.shape, placed.tensor.dtype);
  if (placed.tensor.shape.size() > kMaxRank || !size) {
    raise<DataError>("{} has an invalid shape", where);
  }
  if (offsets.size() != 2 || offsets[0] < 0 || offsets[1] < offsets[0]) {
    raise<DataError>("{} has invalid data_offsets", where);
  }
  placed.begin = static_cast<uint64_t>(offsets[0]);
  placed.end = static_cast<uint64_t>(offsets[1]);
  if (placed.end - placed.begin != *size) {
    raise<DataError>("{} has {} bytes of data, but its shape and dtype need {}", where,
                     placed.end - placed.begin, *size);
  }
  return placed;
}

SafeMetadata read_metadata(const Json& json, std::string_view origin) {
  if (!json.is_object()) raise<DataError>("__metadata__ of {} is not an object", origin);
  SafeMetadata out;
  for (const auto& [key, value] : json.items()) {
    if (!value.is_string()) {
      raise<DataError>("__metadata__ '{}' of {} is not a string", excerpt(key), origin);
    }
    out.emplace(key, value.get<std::string>());
  }
  return out;
}

Json read_header(std::span<const std::byte> bytes, std::string_view origin, uint64_t& data_begin) {
  if (bytes.size() < 8) {
    raise<DataError>("{} has {} bytes and is not a Safetensors file", origin, bytes.size());
  }
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), 8);
  if (length > kMaxHeader || length > bytes.size() - 8) {
    raise<DataError>("{} declares a header of {} bytes, more than {}", origin, length,
                     length > kMaxHeader ? "the limit of 100 MB" : "the file has");
  }
  data_begin = 8 + length;
  const std::string_view header(reinterpret_cast<const char*>(bytes.data()) + 8,
                                static_cast<size_t>(length));
  if (!header.starts_with('{')) raise<DataError>("the header of {} does not begin with {{", origin);
  Json json = parse_json(header, fmt::format("the header of {}", origin),
                         {.max_bytes = kMaxHeader, .max_depth = 4});
  return json;
}

const SafeTensor* find_in(const SafeTensors& tensors, std::string_view name) {
  const auto it = tensors.find(name);
  return it == tensors.end() ? nullptr : &it->second;
}

const SafeTensor& at_or_throw(const SafeTensors& tensors, std::string_view name,
                              std::string_view origin) {
  if (const SafeTensor* tensor = find_in(tensors, name)) return *tensor;
  std::vector<std::string> names;
  for (const auto& [known, tensor] : tensors) names.push_back(known);
  const std::string near = nearest(name, names);
  raise<DataError>("{} has no tensor '{}'{}{}", origin, excerpt(name),
                   near.empty() ? "" : "\n  try: ", excerpt(near));
}

/// A listed file has to be a plain name: nothing outside the folder can be reached through an
/// index.
bool is_plain_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string_view::npos;
}

} // namespace

size_t size_of(SafeDtype dtype) {
  return row(dtype).size;
}

std::string_view name_of(SafeDtype dtype) {
  return row(dtype).name;
}

SafeDtype safe_dtype_from_name(std::string_view name) {
  const auto it = std::ranges::find(kDtypes, name, &DtypeRow::name);
  if (it == kDtypes.end()) raise<DataError>("the dtype '{}' is not supported", excerpt(name));
  return it->dtype;
}

ParsedSafetensors parse_safetensors(std::span<const std::byte> bytes, std::string_view origin) {
  uint64_t data_begin = 0;
  const Json header = read_header(bytes, origin, data_begin);
  ParsedSafetensors out;
  std::vector<PlacedTensor> entries;
  for (const auto& [name, json] : header.items()) {
    if (name == "__metadata__") {
      out.metadata = read_metadata(json, origin);
    } else {
      entries.push_back(read_entry(name, json, origin));
    }
  }
  std::ranges::sort(entries, {}, [](const PlacedTensor& p) { return std::pair(p.begin, p.end); });
  const uint64_t data_size = bytes.size() - data_begin;
  uint64_t at = 0;
  for (PlacedTensor& entry : entries) {
    if (entry.begin != at) {
      raise<DataError>("tensor '{}' of {} {}", excerpt(entry.name), origin,
                       entry.begin < at ? "overlaps another" : "has a gap before it");
    }
    if (entry.end > data_size) {
      raise<DataError>("tensor '{}' of {} ends {} bytes after the end of the file",
                       excerpt(entry.name), origin, entry.end - data_size);
    }
    at = entry.end;
    entry.tensor.data = bytes.subspan(data_begin + entry.begin, entry.end - entry.begin);
    out.tensors.emplace(std::move(entry.name), std::move(entry.tensor));
  }
  if (at != data_size) {
    raise<DataError>("{} has {} bytes after its last tensor", origin, data_size - at);
  }
  return out;
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& file)
    : file_(file), content_(parse_safetensors(file_.bytes(), file.string())) {}

const SafeTensor* SafetensorsFile::find(std::string_view name) const {
  return find_in(content_.tensors, name);
}

const SafeTensor& SafetensorsFile::at(std::string_view name) const {
  return at_or_throw(content_.tensors, name, file_.path().string());
}

SafetensorsFolder::SafetensorsFolder(const std::filesystem::path& folder) : folder_(folder) {
  const auto single = folder / "model.safetensors";
  const auto index = folder / "model.safetensors.index.json";
  std::error_code error;
  if (std::filesystem::exists(single, error)) {
    files_.push_back(std::make_unique<SafetensorsFile>(single));
    tensors_ = files_.back()->tensors();
    return;
  }
  if (!std::filesystem::exists(index, error)) {
    raise<DataError>("{} contains neither model.safetensors nor model.safetensors.index.json",
                     folder.string());
  }
  const Json json = read_json(index, {.max_bytes = kMaxHeader, .max_depth = 4});
  const auto map = json.find("weight_map");
  if (!json.is_object() || map == json.end() || !map->is_object()) {
    raise<DataError>("{} has no \"weight_map\"", index.string());
  }
  std::map<std::string, const SafetensorsFile*> opened;
  for (const auto& [name, value] : map->items()) {
    const std::string file = value.is_string() ? value.get<std::string>() : std::string();
    if (!is_plain_name(file)) {
      raise<DataError>(
          "{} places tensor '{}' in '{}', which is not the name of a file in its folder",
          index.string(), excerpt(name), excerpt(file));
    }
    const SafetensorsFile*& source = opened[file];
    if (source == nullptr) {
      files_.push_back(std::make_unique<SafetensorsFile>(folder / file));
      source = files_.back().get();
    }
    tensors_.emplace(name, source->at(name));
  }
}

const SafeTensor* SafetensorsFolder::find(std::string_view name) const {
  return find_in(tensors_, name);
}

const SafeTensor& SafetensorsFolder::at(std::string_view name) const {
  return at_or_throw(tensors_, name, folder_.string());
}

void SafetensorsFolder::check_sizes() const {
  for (const auto& file : files_) file->file().check_size();
}

SafetensorsLayout layout_safetensors(std::vector<SafeTensorSpec> specs,
                                     const SafeMetadata& metadata, std::string_view origin) {
  std::ranges::sort(specs, [](const SafeTensorSpec& a, const SafeTensorSpec& b) {
    const size_t size_a = size_of(a.dtype);
    const size_t size_b = size_of(b.dtype);
    return size_a != size_b ? size_a > size_b : a.name < b.name;
  });
  SafetensorsLayout layout;
  // Built as text: an ordered JSON object searches all its keys for each new one.
  std::string text = "{";
  const auto add = [&text](std::string_view name, const std::string& value) {
    text += fmt::format("{}{}:{}", text.size() > 1 ? "," : "", dump_json(std::string(name)), value);
  };
  if (!metadata.empty()) add("__metadata__", dump_json(metadata));
  uint64_t at = 0;
  for (const SafeTensorSpec& spec : specs) {
    const auto size = byte_size(spec.shape, spec.dtype);
    uint64_t end = 0;
    if (!size || __builtin_add_overflow(at, *size, &end) || end > uint64_t{1} << 62) {
      raise<Error>("cannot write tensor '{}' to {}: invalid shape", spec.name, origin);
    }
    if (spec.name == "__metadata__" || !is_utf8(spec.name) ||
        !layout.places.emplace(spec.name, SafetensorsLayout::Place{.begin = at, .size = *size})
             .second) {
      raise<Error>("cannot write tensor '{}' to {}: the name is {}", excerpt(spec.name), origin,
                   layout.places.contains(spec.name) ? "repeated" : "not allowed");
    }
    add(spec.name, fmt::format(R"({{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                               name_of(spec.dtype), fmt::join(spec.shape, ","), at, end));
    at = end;
  }
  text += '}';
  text.append((kLine - (sizeof(uint64_t) + text.size()) % kLine) % kLine, ' ');
  if (text.size() > kMaxHeader) {
    raise<Error>("the header of {} would have {} bytes, more than the limit of 100 MB", origin,
                 text.size());
  }
  const uint64_t length = text.size();
  layout.head.assign(reinterpret_cast<const char*>(&length), sizeof length);
  layout.head += text;
  for (auto& [name, place] : layout.places) place.begin += layout.head.size();
  layout.bytes = layout.head.size() + at;
  return layout;
}

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& file,
                                     std::vector<SafeTensorSpec> specs,
                                     const SafeMetadata& metadata)
    : file_(file) {
  const SafetensorsLayout layout = layout_safetensors(std::move(specs), metadata, file.string());
  for (const auto& [name, place] : layout.places)
    file_.add(name, place.begin - layout.head.size(), place.size);
  file_.write_head(layout.head, layout.bytes - layout.head.size());
}

void write_safetensors(const std::filesystem::path& file, const SafeTensors& tensors,
                       const SafeMetadata& metadata) {
  std::vector<SafeTensorSpec> specs;
  for (const auto& [name, tensor] : tensors) specs.push_back({name, tensor.dtype, tensor.shape});
  SafetensorsWriter writer(file, std::move(specs), metadata);
  for (const auto& [name, tensor] : tensors) writer.write(name, tensor.data);
  writer.finish();
}

} // namespace pentatron
