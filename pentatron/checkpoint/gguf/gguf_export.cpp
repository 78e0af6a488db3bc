#include "pentatron/checkpoint/gguf/gguf_export.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <map>
#include <utility>

#include <fmt/ranges.h>

#include "pentatron/base/error.h"
#include "pentatron/base/format.h"
#include "pentatron/base/log.h"
#include "pentatron/base/text.h"
#include "pentatron/checkpoint/gguf/families/family.h"
#include "pentatron/checkpoint/gguf/gguf_config.h"
#include "pentatron/checkpoint/gguf/key_names.h"
#include "pentatron/checkpoint/gguf/quants.h"
#include "pentatron/checkpoint/gguf/rope.h"
#include "pentatron/checkpoint/gguf/structure.h"

namespace pentatron::checkpoint {

namespace {

struct FileType {
  GgmlType type;
  std::string_view name;
  uint32_t number; ///< general.file_type
};
constexpr FileType kFileTypes[] = {{GgmlType::kF32, "f32", 0},
                                   {GgmlType::kF16, "f16", 1},
                                   {GgmlType::kBF16, "bf16", 32},
                                   {GgmlType::kQ8_0, "q8_0", 7},
                                   {GgmlType::kQ4_K, "q4_k", 15}}; // "mostly Q4_K, medium"

/// A tensor of the file and where it comes from.
struct Planned {
  GgufMapEntry entry;
  const GgufSource* source = nullptr;
  GgmlType type = GgmlType::kF32;
};

/// Buffers that files carry along and no model needs.
bool is_buffer(std::string_view name) {
  return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") ||
         name.ends_with(".rotary_emb.inv_freq");
}

/// Of a file of Q4_K: the tensors whose errors cost most are Q6_K, as in llama.cpp's Q4_K_M. These
/// are the output (the embedding where that is the output too), and attention values and down
/// projections in the first and last eighth of the layers and every third between. A fused QKV
/// matrix, for which llama.cpp takes Q5_K, is Q6_K.
bool needs_more_bits(const std::string& name, const GgufStructure& structure) {
  if (name == "output.weight") return true;
  if (name == "token_embd.weight") return !structure.untied;
  if (name.ends_with(".attn_qkv.weight")) return true;
  if (!name.ends_with(".attn_v.weight") && !name.ends_with(".ffn_down.weight") &&
      !name.ends_with(".ffn_down_exps.weight") && !name.ends_with(".ffn_down_shexp.weight"))
    return false;
  const int64_t layer = std::atoll(name.c_str() + std::string_view("blk.").size());
  const int64_t eighth = structure.layers / 8;
  return layer < eighth || layer >= 7 * structure.layers / 8 || (layer - eighth) % 3 == 2;
}

/// The first type whose blocks tile the rows.
GgmlType type_for(const GgufMapEntry& entry, const GgufStructure& structure, GgmlType wanted) {
  if (entry.shape.size() < 2 || entry.gguf.ends_with("_norm.weight") ||
      !entry.gguf.ends_with(".weight") || entry.gguf.find(".ffn_gate_inp") != std::string::npos ||
      entry.gguf == "position_embd.weight")
    return GgmlType::kF32;
  if (wanted == GgmlType::kQ4_K && needs_more_bits(entry.gguf, structure)) wanted = GgmlType::kQ6_K;
  const auto row = static_cast<uint64_t>(entry.gguf_shape().back());
  for (const GgmlType type : {wanted, GgmlType::kQ8_0})
    if (row % ggml_block(type)->elements == 0) return type;
  return GgmlType::kF16;
}

std::vector<Planned> plan(const GgufStructure& structure, const std::vector<GgufSource>& tensors,
                          GgmlType type, Problems& problems) {
  std::map<std::string, const GgufSource*> left;
  for (const GgufSource& source : tensors) {
    std::string name = source.name;
    if (const std::string_view prefix = structure.family->optional_prefix;
        !name.starts_with(prefix) && !name.starts_with("lm_head."))
      name.insert(0, prefix);
    const bool needless = is_buffer(name) || (name == "lm_head.weight" && !structure.untied);
    if (!needless && !left.emplace(name, &source).second)
      problems.push_back(fmt::format("the tensor {} is given twice", excerpt(source.name)));
  }
  std::vector<Planned> planned;
  std::string hf; // of the entry before, which may be another part of the same tensor
  const GgufSource* given = nullptr;
  for (GgufMapEntry& entry : gguf_map(structure)) {
    if (entry.hf != std::exchange(hf, entry.hf)) {
      const auto found = left.extract(entry.hf);
      given = found.empty() ? nullptr : found.mapped();
      if (given == nullptr) problems.push_back(fmt::format("the tensor {} is missing", entry.hf));
    }
    if (given == nullptr) continue;
    const GgufSource& source = *given;
    if (source.shape != entry.shape) {
      problems.push_back(fmt::format("tensor {} has shape [{}] instead of [{}]", entry.hf,
                                     fmt::join(source.shape, ", "), fmt::join(entry.shape, ", ")));
      continue;
    }
    if (source.dtype != SafeDtype::kF64 && source.dtype != SafeDtype::kF32 &&
        source.dtype != SafeDtype::kF16 && source.dtype != SafeDtype::kBF16) {
      problems.push_back(fmt::format("tensor {} is {}", entry.hf, name_of(source.dtype)));
      continue;
    }
    const GgmlType own = type_for(entry, structure, type);
    planned.push_back({std::move(entry), &source, own});
  }
  for (const auto& [name, source] : left)
    problems.push_back(fmt::format("the tensor {} is not part of the model", excerpt(name)));
  return planned;
}

/// "135M", as the converter labels models.
std::string size_label(const std::vector<Planned>& planned) {
  double count = 0;
  for (const Planned& p : planned) {
    double elements = 1;
    for (const int64_t extent : p.entry.gguf_shape()) elements *= static_cast<double>(extent);
    count += elements;
  }
  constexpr std::pair<double, char> kUnits[] = {{1e12, 'T'}, {1e9, 'B'}, {1e6, 'M'}};
  for (const auto& [unit, letter] : kUnits) {
    if (count > unit)
      return fmt::format("{:.{}f}{}", count / unit, count / unit < 9.5 ? 1 : 0, letter);
  }
  return fmt::format("{:.{}f}K", count / 1e3, count / 1e3 < 9.5 ? 1 : 0);
}

GgufMetadata metadata_of(GgufHead head, const std::vector<Planned>& planned,
                         const GgufExport& options, Problems& problems) {
  const auto* file_type = std::ranges::find(kFileTypes, options.type, &FileType::type);
  if (file_type == std::end(kFileTypes))
    raise<ConfigError>(
        "GGUF files with tensors of type {} are not supported\n  try: f32, f16, bf16, q8_0 or q4_k",
        name_of(options.type));
  GgufMetadata out = {{"general.architecture", std::string(head.structure.family->architecture)},
                      {"general.type", std::string("model")}};
  if (!options.name.empty()) out.emplace_back("general.name", options.name);
  out.emplace_back("general.size_label", size_label(planned));
  for (auto& entry : head.metadata) out.push_back(std::move(entry));
  out.emplace_back("general.file_type", file_type->number);
  if (options.tokenizer.empty()) out.emplace_back("tokenizer.ggml.model", std::string("none"));
  for (const auto& entry : options.tokenizer) {
    if (entry.first == "tokenizer.ggml.tokens") {
      const auto* tokens = std::get_if<GgufArray>(&entry.second);
      const size_t count = tokens ? tokens->size() : 0;
      if (count != static_cast<size_t>(head.structure.vocab))
        problems.push_back(
            fmt::format("the tokenizer has {} tokens, but the model has vocab_size={}", count,
                        head.structure.vocab));
    }
    out.push_back(entry);
  }
  out.emplace_back("general.quantization_version", uint32_t{2});
  return out;
}

/// Elements of a source as float.
float element(const std::byte* p, SafeDtype dtype) {
  if (dtype == SafeDtype::kF64) {
    double value;
    std::memcpy(&value, p, sizeof(value));
    return static_cast<float>(value);
  }
  if (dtype == SafeDtype::kF32) {
    float value;
    std::memcpy(&value, p, sizeof(value));
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, p, sizeof(bits));
  return dtype == SafeDtype::kF16 ? float_of_half(bits)
                                  : std::bit_cast<float>(uint32_t{bits} << 16);
}

bool same_elements(SafeDtype dtype, GgmlType type) {
  return (dtype == SafeDtype::kF32 && type == GgmlType::kF32) ||
         (dtype == SafeDtype::kF16 && type == GgmlType::kF16) ||
         (dtype == SafeDtype::kBF16 && type == GgmlType::kBF16);
}

/// Elements of one row of the file, gathered from the source.
class RowSource {
 public:
  RowSource(const Planned& planned, std::span<const std::byte> bytes)
      : entry_(planned.entry), dtype_(planned.source->dtype), size_(size_of(dtype_)),
        bytes_(bytes) {
    const std::vector<int64_t> shape = entry_.gguf_shape();
    vector = shape.size() == 1;
    columns = shape.back();
    for (size_t d = 0; d + 1 < shape.size(); ++d) rows *= shape[d];
  }
  /// Where element (row, column) of the file stands in the source.
  const std::byte* at(int64_t row, int64_t column) const {
    int64_t index;
    if (vector) {
      index = entry_.order == GgufOrder::kRotary ? hf_row(entry_, column, columns) : column;
    } else if (entry_.order == GgufOrder::kTransposed) {
      const int64_t head_rows = rows / entry_.heads, head = row / head_rows;
      index = (head * entry_.head_rows() + entry_.first + column) * head_rows + row % head_rows;
    } else {
      index = hf_row(entry_, row, rows) * columns + column;
    }
    return bytes_.data() + static_cast<size_t>(index) * size_;
  }
  void floats(int64_t row, std::vector<float>& out) const {
    for (int64_t c = 0; c < columns; ++c)
      out[static_cast<size_t>(c)] = element(at(row, c), dtype_) + entry_.shift;
  }
  void raw(int64_t row, std::byte* out) const {
    const bool contiguous =
        vector ? entry_.order == GgufOrder::kSame : entry_.order != GgufOrder::kTransposed;
    if (contiguous) {
      std::memcpy(out, at(row, 0), static_cast<size_t>(columns) * size_);
      return;
    }
    for (int64_t c = 0; c < columns; ++c)
      std::memcpy(out + static_cast<size_t>(c) * size_, at(row, c), size_);
  }

  bool vector = false;
  int64_t rows = 1, columns = 1;

 private:
  const GgufMapEntry& entry_;
  SafeDtype dtype_;
  size_t size_;
  std::span<const std::byte> bytes_;
};

void read_source(const Planned& planned, std::vector<std::byte>& buffer) {
  uint64_t size = size_of(planned.source->dtype);
  for (const int64_t extent : planned.entry.shape) size *= static_cast<uint64_t>(extent);
  buffer.resize(size);
  planned.source->read(buffer);
}

void write_tensor(const Planned& planned, std::span<const std::byte> buffer, GgufWriter& writer) {
  const RowSource source(planned, buffer);
  const GgmlBlock& block = *ggml_block(planned.type);
  const size_t row_bytes = static_cast<size_t>(source.columns) / block.elements * block.bytes;
  const auto band = static_cast<int64_t>(std::max<size_t>(1, (size_t{4} << 20) / row_bytes));
  const bool raw = planned.entry.shift == 0 && same_elements(planned.source->dtype, planned.type);
  std::vector<float> row(static_cast<size_t>(source.columns));
  std::vector<std::byte> out;
  uint64_t offset = 0;
  for (int64_t begin = 0; begin < source.rows; begin += band) {
    const int64_t end = std::min(begin + band, source.rows);
    out.resize(static_cast<size_t>(end - begin) * row_bytes);
    for (int64_t r = begin; r < end; ++r) {
      std::byte* to = out.data() + static_cast<size_t>(r - begin) * row_bytes;
      if (raw) {
        source.raw(r, to);
        continue;
      }
      source.floats(r, row);
      if (const size_t lost = first_lost(planned.type, row); lost < row.size())
        raise<CheckpointError>(
            "tensor {} contains {}, which {} cannot store\n  try: the type f32{}", planned.entry.hf,
            row[lost], name_of(planned.type), std::isfinite(row[lost]) ? " or bf16" : "");
      quantize(planned.type, row, {to, row_bytes});
    }
    writer.write(planned.entry.gguf, out, offset);
    offset += out.size();
  }
}

std::string listed(const std::filesystem::path& file, const Problems& problems) {
  constexpr size_t kMaxListed = 12;
  std::string text = fmt::format("cannot write {}:", file.string());
  for (size_t i = 0; i < std::min(problems.size(), kMaxListed); ++i) text += "\n  " + problems[i];
  if (problems.size() > kMaxListed)
    text += fmt::format("\n  and {} more", problems.size() - kMaxListed);
  return text;
}

} // namespace

void write_gguf(const std::filesystem::path& file, const Json& hf_config,
                const std::vector<GgufSource>& tensors, const GgufExport& options) {
  Problems problems;
  GgufHead head = config_to_gguf(hf_config, problems);
  const auto divisors = head.divisors;
  if (!problems.empty()) {
    for (std::string& problem : problems) problem = with_key_name(std::move(problem));
    throw ConfigError(listed(file, problems));
  }
  const std::vector<Planned> planned = plan(head.structure, tensors, options.type, problems);
  const GgufMetadata metadata = metadata_of(std::move(head), planned, options, problems);
  if (!problems.empty()) throw CheckpointError(listed(file, problems));
  std::vector<GgufTensorSpec> specs;
  for (const auto& [name, values] : divisors)
    specs.push_back({name, GgmlType::kF32, {std::ssize(values)}});
  std::map<GgmlType, size_t> others; ///< than asked for
  for (const Planned& p : planned) {
    specs.push_back({p.entry.gguf, p.type, p.entry.gguf_shape()});
    const bool chosen = p.type == options.type || p.type == GgmlType::kF32 ||
                        (options.type == GgmlType::kQ4_K && p.type == GgmlType::kQ6_K);
    if (!chosen) ++others[p.type];
  }
  for (const auto& [type, count] : others)
    log::warning(
        "{} written as {}, because the row length is not a multiple of the block size of {}",
        counted(static_cast<int64_t>(count), "tensor is", "tensors are"), name_of(type),
        name_of(options.type));
  GgufWriter writer(file, metadata, specs);
  for (const auto& [name, values] : divisors) writer.write(name, std::as_bytes(std::span(values)));
  std::vector<std::byte> buffer;
  const GgufSource* last = nullptr;
  for (const Planned& p : planned) {
    if (std::exchange(last, p.source) != p.source) read_source(p, buffer);
    write_tensor(p, buffer, writer);
  }
  writer.finish();
}

GgmlType gguf_type_from_name(std::string_view name) {
  std::string lower(name);
  std::ranges::transform(lower, lower.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  for (const FileType& type : kFileTypes) {
    if (type.name == lower) return type.type;
  }
  raise<ConfigError>(
      "GGUF files with tensors of type {} are not supported\n  try: f32, f16, bf16, q8_0 or q4_k",
      excerpt(name));
}

} // namespace pentatron::checkpoint
