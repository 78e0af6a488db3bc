#include "pentatron/checkpoint/gguf/gguf_model.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <set>

#include <fmt/ranges.h>

#include "pentatron/base/error.h"
#include "pentatron/base/gguf.h"
#include "pentatron/base/text.h"
#include "pentatron/checkpoint/gguf/families/family.h"
#include "pentatron/checkpoint/gguf/gguf_config.h"
#include "pentatron/checkpoint/gguf/quants.h"
#include "pentatron/checkpoint/gguf/rope.h"
#include "pentatron/checkpoint/gguf/structure.h"

namespace pentatron::checkpoint {

namespace {

SafeDtype dtype_of(GgmlType type) {
  return type == GgmlType::kF16    ? SafeDtype::kF16
         : type == GgmlType::kBF16 ? SafeDtype::kBF16
                                   : SafeDtype::kF32;
}

/// Shapes are compared without leading extents of one, which ggml does not keep.
bool same_shape(std::span<const int64_t> a, std::span<const int64_t> b) {
  while (!a.empty() && a.front() == 1) a = a.subspan(1);
  while (!b.empty() && b.front() == 1) b = b.subspan(1);
  return std::ranges::equal(a, b);
}

constexpr size_t kMaxListed = 12;

void list_names(const std::vector<std::string>& names, std::string_view what, Problems& problems) {
  if (names.empty()) return;
  std::vector<std::string> shown(
      names.begin(),
      names.begin() + static_cast<std::ptrdiff_t>(std::min(names.size(), kMaxListed)));
  std::string text = fmt::format("{} {}", what, fmt::join(shown, ", "));
  if (names.size() > shown.size()) text += fmt::format(" and {} more", names.size() - shown.size());
  problems.push_back(std::move(text));
}

/// Rows of a tensor, `bytes` each, as elements of `size` bytes.
struct Rows {
  const GgufTensor& tensor;
  SafeDtype dtype; ///< as which they are read: the tensor's own or F32
  int64_t count = 1;
  int64_t columns = 1;
  size_t bytes = 0;

  Rows(const GgufTensor& t, SafeDtype as) : tensor(t), dtype(as) {
    if (!t.shape.empty()) columns = t.shape.back();
    for (size_t i = 0; i + 1 < t.shape.size(); ++i) count *= t.shape[i];
    bytes = count == 0 ? 0 : t.data.size() / static_cast<size_t>(count);
  }
  /// Row `row` as elements of the dtype that a reader gets; `scratch` has columns floats.
  std::span<const std::byte> elements(int64_t row, std::vector<float>& scratch) const {
    const auto raw = tensor.data.subspan(static_cast<size_t>(row) * bytes, bytes);
    if (size_of(dtype) == 2) return raw;
    dequantize(tensor.type, raw, scratch);
    return std::as_bytes(std::span(scratch));
  }
};

/// `count` rows from `first` on into their transpose, some at a time, so that a line of the target
/// is written at once.
void read_transposed(const Rows& rows, int64_t first, int64_t count, std::byte* target) {
  constexpr int64_t kBand = 32;
  const size_t size = size_of(rows.dtype);
  std::vector<float> scratch(static_cast<size_t>(rows.columns));
  const size_t row_bytes = static_cast<size_t>(rows.columns) * size;
  std::vector<std::byte> band(kBand * row_bytes);
  for (int64_t begin = 0; begin < count; begin += kBand) {
    const int64_t end = std::min(begin + kBand, count);
    for (int64_t r = begin; r < end; ++r) {
      const auto row = rows.elements(first + r, scratch);
      std::memcpy(band.data() + static_cast<size_t>(r - begin) * row_bytes, row.data(), row_bytes);
    }
    for (int64_t c = 0; c < rows.columns; ++c) {
      std::byte* out = target + static_cast<size_t>(c * count + begin) * size;
      for (int64_t r = begin; r < end; ++r, out += size)
        std::memcpy(out,
                    band.data() + static_cast<size_t>(r - begin) * row_bytes +
                        static_cast<size_t>(c) * size,
                    size);
    }
  }
}

} // namespace

uint64_t GgufModel::Tensor::size_bytes() const {
  uint64_t size = size_of(dtype);
  for (const int64_t extent : shape) size *= static_cast<uint64_t>(extent);
  return size;
}

struct GgufModel::Impl {
  explicit Impl(const std::filesystem::path& path) : file(path) {}

  struct Source {
    const GgufTensor* tensor;
    GgufMapEntry entry;
  };
  void match(const GgufStructure& structure, Problems& problems);
  void take(const GgufMapEntry& entry, const GgufTensor& tensor, Problems& problems);
  void read(const Source& source, SafeDtype dtype, std::span<std::byte> target) const;

  GgufFile file;
  Json config;
  std::vector<Tensor> tensors;
  std::vector<std::vector<Source>> sources; ///< the parts of each tensor
  std::map<std::string, size_t, std::less<>> index;
};

/// Finds every tensor of the model in the file.
void GgufModel::Impl::match(const GgufStructure& structure, Problems& problems) {
  std::set<std::string_view> expected;
  if (structure.family->decoder.llama3_rope) expected = {kRopeFreqs};
  if (structure.family->decoder.longrope) expected = {kLongFactors, kShortFactors};
  std::vector<std::string> missing, extra;
  const std::vector<GgufMapEntry> map = gguf_map(structure);
  for (const GgufMapEntry& entry : map) {
    expected.insert(entry.gguf);
    if (const GgufTensor* tensor = file.find(entry.gguf)) {
      take(entry, *tensor, problems);
    } else {
      missing.push_back(entry.gguf);
    }
  }
  for (const GgufTensor& tensor : file.tensors()) {
    if (!expected.contains(tensor.name)) extra.push_back(excerpt(tensor.name));
  }
  list_names(missing, "missing tensors:", problems);
  list_names(extra, "tensors that the architecture does not have:", problems);
}

void GgufModel::Impl::take(const GgufMapEntry& entry, const GgufTensor& tensor,
                           Problems& problems) {
  if (!can_dequantize(tensor.type)) {
    problems.push_back(fmt::format("tensor {} has type {}, which is not supported", entry.gguf,
                                   name_of(tensor.type)));
    return;
  }
  if (!same_shape(tensor.shape, entry.gguf_shape())) {
    problems.push_back(fmt::format("tensor {} has shape [{}] instead of [{}]", entry.gguf,
                                   fmt::join(tensor.shape, ", "),
                                   fmt::join(entry.gguf_shape(), ", ")));
    return;
  }
  if (entry.shift != 0 && dtype_of(tensor.type) != SafeDtype::kF32) {
    problems.push_back(
        fmt::format("tensor {} is {} instead of F32", entry.gguf, name_of(tensor.type)));
    return;
  }
  const auto [place, fresh] = index.emplace(entry.hf, tensors.size());
  if (fresh) {
    tensors.push_back({.name = entry.hf, .shape = entry.shape, .dtype = dtype_of(tensor.type)});
    sources.emplace_back();
  }
  sources[place->second].push_back({&tensor, entry});
  Tensor& whole = tensors[place->second];
  if (whole.dtype != dtype_of(tensor.type)) whole.dtype = SafeDtype::kF32;
}

GgufModel::GgufModel(const std::filesystem::path& file) : impl_(std::make_unique<Impl>(file)) {
  Problems problems;
  GgufConfig config = config_from_gguf(impl_->file, problems);
  impl_->config = std::move(config.hf);
  // Impossible sizes would give impossible shapes.
  if (problems.empty()) impl_->match(config.structure, problems);
  if (problems.empty()) return;
  const size_t more = problems.size() > kMaxListed ? problems.size() - kMaxListed : 0;
  problems.resize(problems.size() - more);
  std::string text = fmt::format("{} is not a {} model that pentatron can read:", file.string(),
                                 config.structure.family->architecture);
  for (const std::string& problem : problems) text += "\n  " + problem;
  if (more > 0) text += fmt::format("\n  and {} more", more);
  throw CheckpointError(text);
}

GgufModel::~GgufModel() = default;
GgufModel::GgufModel(GgufModel&&) noexcept = default;
GgufModel& GgufModel::operator=(GgufModel&&) noexcept = default;

const Json& GgufModel::config() const {
  return impl_->config;
}

const std::vector<GgufModel::Tensor>& GgufModel::tensors() const {
  return impl_->tensors;
}

const GgufModel::Tensor* GgufModel::find(std::string_view name) const {
  const auto it = impl_->index.find(name);
  return it == impl_->index.end() ? nullptr : &impl_->tensors[it->second];
}

bool GgufModel::has_tokenizer() const {
  return pentatron::has_tokenizer(impl_->file.metadata());
}

const std::filesystem::path& GgufModel::path() const {
  return impl_->file.file().path();
}

void GgufModel::read(std::string_view name, std::span<std::byte> target) const {
  const auto it = impl_->index.find(name);
  if (it == impl_->index.end())
    raise<DataError>("{} has no tensor '{}'", path().string(), excerpt(name));
  const Tensor& tensor = impl_->tensors[it->second];
  PT_DCHECK(target.size() == tensor.size_bytes());
  impl_->file.file().check_size();
  for (const Impl::Source& source : impl_->sources[it->second])
    impl_->read(source, tensor.dtype, target);
}

void GgufModel::Impl::read(const Source& source, SafeDtype dtype,
                           std::span<std::byte> target) const {
  const size_t size = size_of(dtype);
  const Rows rows(*source.tensor, dtype);
  const GgufMapEntry& entry = source.entry;
  if (entry.order == GgufOrder::kTransposed) {
    const int64_t columns = rows.count / entry.heads; // of the target
    for (int64_t head = 0; head < entry.heads; ++head) {
      const int64_t row = head * entry.head_rows() + entry.first;
      read_transposed(rows, head * columns, columns,
                      target.data() + static_cast<size_t>(row * columns) * size);
    }
    return;
  }
  std::vector<float> scratch(static_cast<size_t>(rows.columns));
  const bool shifted = entry.shift != 0; // read as float: see take()
  // A bias is one row in the file, and its elements are the rows of the model.
  const bool vector = entry.shape.size() == 1;
  for (int64_t row = 0; row < rows.count; ++row) {
    auto elements = rows.elements(row, scratch);
    if (shifted) {
      for (float& value : scratch) value -= entry.shift;
      elements = std::as_bytes(std::span(scratch));
    }
    if (!vector || entry.order == GgufOrder::kSame) {
      const int64_t to = vector ? row : hf_row(entry, row, rows.count);
      std::memcpy(target.data() + static_cast<size_t>(to) * elements.size(), elements.data(),
                  elements.size());
      continue;
    }
    for (int64_t i = 0; i < rows.columns; ++i) {
      const int64_t to = hf_row(entry, i, rows.columns);
      std::memcpy(target.data() + static_cast<size_t>(to) * size,
                  elements.data() + static_cast<size_t>(i) * size, size);
    }
  }
}

} // namespace pentatron::checkpoint
