#include "pentatron/base/gguf.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <set>

#include <fmt/ranges.h>

#include "pentatron/base/descriptors.h"
#include "pentatron/base/error.h"
#include "pentatron/base/text.h"

namespace pentatron {

static_assert(std::endian::native == std::endian::little,
              "GGUF can only be read on little-endian machines");

namespace {

constexpr uint32_t kTypeArray = 9;
constexpr uint32_t kNumTypes = std::variant_size_v<GgufValue>;
constexpr int kMaxDepth = 4;
constexpr uint32_t kMaxDimensions = 4;
/// Values are copied, so their number is what bounds memory; a vocabulary has some 100,000.
constexpr uint64_t kMaxItems = uint64_t{1} << 24;
constexpr uint64_t kMaxEntries = uint64_t{1} << 20; ///< of metadata, and tensors
constexpr uint64_t kMaxName = 65'535;
constexpr uint64_t kMaxAlignment = uint64_t{1} << 30;

struct TypeRow {
  uint32_t type;
  GgmlBlock block;
};
constexpr TypeRow kTypes[] = {
    {0, {"F32", 1, 4}},         {1, {"F16", 1, 2}},         {2, {"Q4_0", 32, 18}},
    {3, {"Q4_1", 32, 20}},      {6, {"Q5_0", 32, 22}},      {7, {"Q5_1", 32, 24}},
    {8, {"Q8_0", 32, 34}},      {9, {"Q8_1", 32, 36}},      {10, {"Q2_K", 256, 84}},
    {11, {"Q3_K", 256, 110}},   {12, {"Q4_K", 256, 144}},   {13, {"Q5_K", 256, 176}},
    {14, {"Q6_K", 256, 210}},   {15, {"Q8_K", 256, 292}},   {16, {"IQ2_XXS", 256, 66}},
    {17, {"IQ2_XS", 256, 74}},  {18, {"IQ3_XXS", 256, 98}}, {19, {"IQ1_S", 256, 50}},
    {20, {"IQ4_NL", 32, 18}},   {21, {"IQ3_S", 256, 110}},  {22, {"IQ2_S", 256, 82}},
    {23, {"IQ4_XS", 256, 136}}, {24, {"I8", 1, 1}},         {25, {"I16", 1, 2}},
    {26, {"I32", 1, 4}},        {27, {"I64", 1, 8}},        {28, {"F64", 1, 8}},
    {29, {"IQ1_M", 256, 56}},   {30, {"BF16", 1, 2}},       {34, {"TQ1_0", 256, 54}},
    {35, {"TQ2_0", 256, 66}},   {39, {"MXFP4", 32, 17}}};

constexpr size_t kSizes[kNumTypes] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

/// The smallest encoding of a value of a type: what bounds counts before anything is read.
uint64_t smallest(uint32_t type) {
  return type == 8 ? 8 : type == kTypeArray ? 12 : kSizes[type];
}

/// Reads from the front of a file; whatever does not lie in it is a DataError.
class Cursor {
 public:
  Cursor(std::span<const std::byte> bytes, const std::string& origin)
      : bytes_(bytes), origin_(origin) {}

  uint64_t left() const { return bytes_.size() - at_; }
  uint64_t at() const { return at_; }
  const std::string& origin() const { return origin_; }

  std::span<const std::byte> take(uint64_t size, std::string_view what) {
    if (size > left())
      raise<DataError>("{} is truncated in {}: {} bytes are needed and {} are left", origin_, what,
                       size, left());
    const auto part = bytes_.subspan(at_, size);
    at_ += size;
    return part;
  }
  template <class T> T number(std::string_view what) {
    T value;
    std::memcpy(&value, take(sizeof(T), what).data(), sizeof(T));
    return value;
  }
  std::string text(std::string_view what) {
    const auto size = number<uint64_t>(what);
    const auto part = take(size, what);
    return {reinterpret_cast<const char*>(part.data()), part.size()};
  }
  /// A name: short, UTF-8 and not empty.
  std::string name(std::string_view what) {
    const auto size = number<uint64_t>(what);
    if (size == 0 || size > kMaxName)
      raise<DataError>("{} of {} has {} bytes; 1 to {} are allowed", what, origin_, size, kMaxName);
    const auto part = take(size, what);
    std::string name(reinterpret_cast<const char*>(part.data()), part.size());
    if (!is_utf8(name)) raise<DataError>("{} of {} is not valid UTF-8", what, origin_);
    return name;
  }
  bool boolean(const std::string& key) {
    const auto value = number<uint8_t>(key);
    if (value > 1)
      raise<DataError>("'{}' of {} is {}, but must be true or false", excerpt(key), origin_, value);
    return value == 1;
  }
  /// Counts array items over the whole file.
  void count_items(uint64_t n, const std::string& key) {
    if (n > kMaxItems || items_ + n > kMaxItems)
      raise<DataError>("{} has more than {} items in its metadata lists, counted up to '{}'",
                       origin_, kMaxItems, excerpt(key));
    items_ += n;
  }

 private:
  std::span<const std::byte> bytes_;
  const std::string& origin_;
  uint64_t at_ = 0;
  uint64_t items_ = 0;
};

template <size_t... I, class F>
void with_index(size_t index, std::index_sequence<I...> /*all*/, F&& f) {
  (void)((index == I ? (f(std::integral_constant<size_t, I>()), true) : false) || ...);
}
template <class F> void with_type(uint32_t type, F&& f) {
  with_index(type, std::make_index_sequence<kNumTypes>(), std::forward<F>(f));
}

void check_type(uint32_t type, const std::string& key, const Cursor& in) {
  if (type >= kNumTypes)
    raise<DataError>("'{}' of {} has the value type {}, which is unknown", excerpt(key),
                     in.origin(), type);
}

GgufArray read_array(Cursor& in, const std::string& key, int depth) {
  const auto type = in.number<uint32_t>(key);
  const auto count = in.number<uint64_t>(key);
  check_type(type, key, in);
  if (depth > kMaxDepth)
    raise<DataError>("'{}' of {} has lists nested more than {} deep", excerpt(key), in.origin(),
                     depth);
  if (count > in.left() / smallest(type))
    raise<DataError>("'{}' of {} has {} items, more than fit in the file", excerpt(key),
                     in.origin(), count);
  in.count_items(count, key);
  GgufArray array;
  with_type(type, [&](auto index) {
    auto& items = array.items.template emplace<index()>();
    using T = typename std::decay_t<decltype(items)>::value_type;
    items.reserve(count);
    for (uint64_t i = 0; i < count; ++i) {
      if constexpr (std::same_as<T, bool>) {
        items.push_back(in.boolean(key));
      } else if constexpr (std::same_as<T, std::string>) {
        items.push_back(in.text(key));
      } else if constexpr (std::same_as<T, GgufArray>) {
        items.push_back(read_array(in, key, depth + 1));
      } else {
        items.push_back(in.template number<T>(key));
      }
    }
  });
  return array;
}

GgufValue read_value(Cursor& in, const std::string& key) {
  const auto type = in.number<uint32_t>(key);
  check_type(type, key, in);
  GgufValue value;
  with_type(type, [&](auto index) {
    using T = std::variant_alternative_t<index(), GgufValue>;
    if constexpr (std::same_as<T, bool>) {
      value.emplace<index()>(in.boolean(key));
    } else if constexpr (std::same_as<T, std::string>) {
      value.emplace<index()>(in.text(key));
    } else if constexpr (std::same_as<T, GgufArray>) {
      value.emplace<index()>(read_array(in, key, 1));
    } else {
      value.emplace<index()>(in.number<T>(key));
    }
  });
  return value;
}

constexpr uint64_t kImpossible = UINT64_MAX;

/// Bytes of a tensor; kImpossible if its rows are no whole blocks or the size is beyond 2^62.
uint64_t byte_size(const GgmlBlock& block, const std::vector<int64_t>& shape) {
  const int64_t row = shape.empty() ? 1 : shape.back();
  if (row < 0 || static_cast<uint64_t>(row) % block.elements != 0) return kImpossible;
  int64_t size = row / static_cast<int64_t>(block.elements);
  if (__builtin_mul_overflow(size, static_cast<int64_t>(block.bytes), &size)) return kImpossible;
  bool empty = row == 0;
  for (size_t i = 0; i + 1 < shape.size(); ++i) {
    if (shape[i] < 0) return kImpossible;
    if (shape[i] == 0) {
      empty = true;
    } else if (__builtin_mul_overflow(size, shape[i], &size)) {
      return kImpossible;
    }
  }
  if (size > int64_t{1} << 62) return kImpossible;
  return empty ? 0 : static_cast<uint64_t>(size);
}

uint64_t aligned(uint64_t at, uint64_t alignment) {
  return (at + alignment - 1) / alignment * alignment;
}

/// A tensor with its place behind the start of the data.
struct Placed {
  GgufTensor tensor;
  uint64_t offset = 0;
  uint64_t size = 0;
};

Placed read_tensor_info(Cursor& in) {
  Placed placed;
  GgufTensor& tensor = placed.tensor;
  tensor.name = in.name("a tensor's name");
  const auto dimensions = in.number<uint32_t>("a tensor's shape");
  if (dimensions > kMaxDimensions)
    raise<DataError>("tensor '{}' of {} has {} dimensions; at most {} are allowed",
                     excerpt(tensor.name), in.origin(), dimensions, kMaxDimensions);
  for (uint32_t i = 0; i < dimensions; ++i)
    tensor.shape.push_back(static_cast<int64_t>(in.number<uint64_t>("a tensor's shape")));
  std::ranges::reverse(tensor.shape);
  tensor.type = static_cast<GgmlType>(in.number<uint32_t>("a tensor's type"));
  placed.offset = in.number<uint64_t>("a tensor's offset");
  const GgmlBlock* block = ggml_block(tensor.type);
  const uint64_t size = byte_size(block ? *block : GgmlBlock{"", 1, 1}, tensor.shape);
  if (size == kImpossible)
    raise<DataError>("tensor '{}' of {} ({}) has an invalid shape, [{}]", excerpt(tensor.name),
                     in.origin(), name_of(tensor.type), fmt::join(tensor.shape, ", "));
  placed.size = block ? size : 0;
  return placed;
}

/// Gives every tensor its data. Bytes between tensors are padding and mean nothing.
void place(std::vector<Placed>& placed, std::span<const std::byte> data, uint64_t alignment,
           const std::string& origin) {
  std::vector<const Placed*> by_offset;
  for (Placed& p : placed) {
    const std::string_view name = p.tensor.name;
    if (p.offset % alignment != 0)
      raise<DataError>(
          "tensor '{}' of {} begins at {}, which is not a multiple of the alignment {}",
          excerpt(name), origin, p.offset, alignment);
    if (p.offset > data.size() || p.size > data.size() - p.offset)
      raise<DataError>(
          "tensor '{}' of {} ends after the end of the file; the file may be truncated",
          excerpt(name), origin);
    p.tensor.data = data.subspan(p.offset, p.size);
    if (p.size > 0) by_offset.push_back(&p);
  }
  std::ranges::sort(by_offset, {}, &Placed::offset);
  for (size_t i = 1; i < by_offset.size(); ++i) {
    const Placed& before = *by_offset[i - 1];
    if (before.offset + before.size > by_offset[i]->offset)
      raise<DataError>("tensors '{}' and '{}' of {} overlap", excerpt(before.tensor.name),
                       excerpt(by_offset[i]->tensor.name), origin);
  }
}

uint64_t alignment_of(const GgufMetadata& metadata, const std::string& origin) {
  for (const auto& [key, value] : metadata) {
    if (key != "general.alignment") continue;
    const auto* alignment = std::get_if<uint32_t>(&value);
    if (alignment == nullptr || !std::has_single_bit(*alignment) || *alignment > kMaxAlignment)
      raise<DataError>("general.alignment of {} is not a power of two in 32 bits", origin);
    return *alignment;
  }
  return GgufWriter::kAlignment;
}

void check_version(uint32_t version, const std::string& origin) {
  if (version == 2 || version == 3) return;
  if ((version & 0xFFFF) == 0 && version != 0)
    raise<DataError>("{} is a big-endian GGUF file; only little-endian files are supported",
                     origin);
  raise<DataError>("{} is GGUF version {}; only versions 2 and 3 are supported", origin, version);
}

/// The head of a file as bytes.
class Head {
 public:
  template <class T> void number(T value) {
    const char* bytes = reinterpret_cast<const char*>(&value);
    bytes_.append(bytes, sizeof(T));
  }
  void text(std::string_view value) {
    number<uint64_t>(value.size());
    bytes_ += value;
  }
  void value(const GgufValue& value) {
    number(static_cast<uint32_t>(value.index()));
    std::visit([&](const auto& v) { item(v); }, value);
  }
  std::string& bytes() { return bytes_; }

 private:
  void item(const std::string& v) { text(v); }
  void item(const GgufArray& v) {
    number(static_cast<uint32_t>(v.items.index()));
    number<uint64_t>(v.size());
    std::visit(
        [&](const auto& items) {
          using T = typename std::decay_t<decltype(items)>::value_type;
          for (const auto& i : items) item(static_cast<const T&>(i));
        },
        v.items);
  }
  void item(bool v) { number<uint8_t>(v ? 1 : 0); }
  template <class T> void item(T v) { number(v); }

  std::string bytes_;
};

template <class T> std::optional<int64_t> as_integer(const T& value) {
  if constexpr (std::integral<T> && !std::same_as<T, bool>) {
    if (std::in_range<int64_t>(value)) return static_cast<int64_t>(value);
  }
  return std::nullopt;
}
template <class T> std::optional<double> as_number(const T& value) {
  if constexpr (std::is_arithmetic_v<T> && !std::same_as<T, bool>)
    return static_cast<double>(value);
  return std::nullopt;
}

} // namespace

const GgmlBlock* ggml_block(GgmlType type) {
  const auto* found = std::ranges::find(kTypes, static_cast<uint32_t>(type), &TypeRow::type);
  return found == std::end(kTypes) ? nullptr : &found->block;
}

std::string name_of(GgmlType type) {
  const GgmlBlock* block = ggml_block(type);
  return block ? std::string(block->name) : fmt::format("type {}", static_cast<uint32_t>(type));
}

size_t GgufArray::size() const {
  return std::visit([](const auto& v) { return v.size(); }, items);
}

bool GgufArray::operator==(const GgufArray& other) const {
  return items == other.items;
}

GgufKeys::GgufKeys(GgufMetadata metadata, std::string origin)
    : metadata_(std::move(metadata)), origin_(std::move(origin)) {
  for (size_t i = 0; i < metadata_.size(); ++i) index_.emplace(metadata_[i].first, i);
}

const GgufValue* GgufKeys::find(std::string_view key) const {
  const auto it = index_.find(key);
  return it == index_.end() ? nullptr : &metadata_[it->second].second;
}

void GgufKeys::missing(std::string_view key) const {
  raise<DataError>("{} has no '{}' in its metadata", origin_, key);
}

void GgufKeys::wrong(std::string_view key, std::string_view kind) const {
  raise<DataError>("'{}' in the metadata of {} is not {}", key, origin_, kind);
}

const std::string& GgufKeys::text(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) missing(key);
  const auto* text = std::get_if<std::string>(value);
  if (text == nullptr || !is_utf8(*text)) wrong(key, "a string");
  return *text;
}

std::optional<std::string> GgufKeys::find_text(std::string_view key) const {
  if (find(key) == nullptr) return std::nullopt;
  return text(key);
}

bool has_tokenizer(const GgufKeys& metadata) {
  const auto model = metadata.find_text("tokenizer.ggml.model");
  return model && *model != "none" && *model != "no_vocab";
}

int64_t GgufKeys::integer(std::string_view key) const {
  const auto value = find_integer(key);
  if (!value) missing(key);
  return *value;
}

std::optional<int64_t> GgufKeys::find_integer(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  const auto integer = std::visit([](const auto& v) { return as_integer(v); }, *value);
  if (!integer) wrong(key, "an integer");
  return integer;
}

std::optional<double> GgufKeys::find_number(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  const auto number = std::visit([](const auto& v) { return as_number(v); }, *value);
  if (!number || !std::isfinite(*number)) wrong(key, "a finite number");
  return number;
}

std::optional<bool> GgufKeys::find_bool(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  const bool* boolean = std::get_if<bool>(value);
  if (boolean == nullptr) wrong(key, "true or false");
  return *boolean;
}

const std::vector<std::string>* GgufKeys::find_texts(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return nullptr;
  const auto* array = std::get_if<GgufArray>(value);
  const auto* texts = array ? std::get_if<std::vector<std::string>>(&array->items) : nullptr;
  if (texts == nullptr) wrong(key, "a list of strings");
  return texts;
}

std::optional<std::vector<int64_t>> GgufKeys::find_integers(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  std::vector<int64_t> out;
  bool fine = false;
  if (const auto* array = std::get_if<GgufArray>(value)) {
    fine = std::visit(
        [&](const auto& items) {
          for (const auto& item : items) {
            const auto integer = as_integer(item);
            if (!integer) return false;
            out.push_back(*integer);
          }
          return true;
        },
        array->items);
  }
  if (!fine) wrong(key, "a list of integers");
  return out;
}

std::optional<std::vector<double>> GgufKeys::find_numbers(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  std::vector<double> out;
  bool fine = false;
  if (const auto* array = std::get_if<GgufArray>(value)) {
    fine = std::visit(
        [&](const auto& items) {
          for (const auto& item : items) {
            const auto number = as_number(item);
            if (!number) return false;
            out.push_back(*number);
          }
          return true;
        },
        array->items);
  }
  if (!fine) wrong(key, "a list of numbers");
  return out;
}

ParsedGguf parse_gguf(std::span<const std::byte> bytes, const std::string& origin) {
  Cursor in(bytes, origin);
  if (bytes.size() < 4 || std::memcmp(bytes.data(), "GGUF", 4) != 0)
    raise<DataError>("{} is not a GGUF file: it does not begin with \"GGUF\"", origin);
  in.take(4, "its head");
  ParsedGguf out;
  out.version = in.number<uint32_t>("its head");
  check_version(out.version, origin);
  const auto num_tensors = in.number<uint64_t>("its head");
  const auto num_values = in.number<uint64_t>("its head");
  // The smallest entry is a key of one byte with a value of one; the smallest tensor is a scalar.
  if (num_values > in.left() / 14 || num_tensors > in.left() / 25)
    raise<DataError>("{} declares {} metadata entries and {} tensors, more than fit in the file",
                     origin, num_values, num_tensors);
  if (num_values > kMaxEntries || num_tensors > kMaxEntries)
    raise<DataError>("{} has {} metadata entries and {} tensors; at most {} are supported", origin,
                     num_values, num_tensors, kMaxEntries);
  std::set<std::string, std::less<>> names;
  for (uint64_t i = 0; i < num_values; ++i) {
    std::string key = in.name("a metadata key");
    if (!names.insert(key).second)
      raise<DataError>("{} has the metadata key '{}' twice", origin, excerpt(key));
    GgufValue value = read_value(in, key);
    out.metadata.emplace_back(std::move(key), std::move(value));
  }
  names.clear();
  std::vector<Placed> placed;
  for (uint64_t i = 0; i < num_tensors; ++i) {
    placed.push_back(read_tensor_info(in));
    if (!names.insert(placed.back().tensor.name).second)
      raise<DataError>("{} has the tensor '{}' twice", origin, excerpt(placed.back().tensor.name));
  }
  const uint64_t alignment = alignment_of(out.metadata, origin);
  const uint64_t begin = std::min<uint64_t>(aligned(in.at(), alignment), bytes.size());
  place(placed, bytes.subspan(begin), alignment, origin);
  for (Placed& p : placed) out.tensors.push_back(std::move(p.tensor));
  return out;
}

bool is_gguf(const std::filesystem::path& file) {
  char magic[4] = {};
  std::ifstream stream(file, std::ios::binary);
  if (!stream) require_descriptors(errno, file.native());
  stream.read(magic, sizeof(magic));
  return std::string_view(magic, sizeof(magic)) == "GGUF";
}

GgufFile::GgufFile(const std::filesystem::path& file) : file_(file) {
  ParsedGguf parsed = parse_gguf(file_.bytes(), file.string());
  metadata_ = GgufKeys(std::move(parsed.metadata), file.string());
  tensors_ = std::move(parsed.tensors);
  for (size_t i = 0; i < tensors_.size(); ++i) index_.emplace(tensors_[i].name, i);
}

const GgufTensor* GgufFile::find(std::string_view name) const {
  const auto it = index_.find(name);
  return it == index_.end() ? nullptr : &tensors_[it->second];
}

namespace {

/// What goes before the descriptions of the tensors.
Head head_of(const GgufMetadata& metadata, size_t num_tensors, std::string_view origin) {
  Head head;
  head.bytes() = "GGUF";
  head.number<uint32_t>(3);
  head.number<uint64_t>(num_tensors);
  head.number<uint64_t>(metadata.size());
  std::set<std::string_view> keys;
  for (const auto& [key, value] : metadata) {
    if (key == "general.alignment" || !keys.insert(key).second)
      raise<Error>("{} cannot be written with the metadata key '{}' {}", origin, key,
                   key == "general.alignment" ? "set" : "twice");
    head.text(key);
    head.value(value);
  }
  return head;
}

} // namespace

GgufWriter::GgufWriter(const std::filesystem::path& file, const GgufMetadata& metadata,
                       const std::vector<GgufTensorSpec>& specs)
    : file_(file) {
  Head head = head_of(metadata, specs.size(), file.string());
  uint64_t offset = 0;
  for (const GgufTensorSpec& spec : specs) {
    const GgmlBlock* block = ggml_block(spec.type);
    const uint64_t size = block ? byte_size(*block, spec.shape) : kImpossible;
    const bool possible =
        !spec.name.empty() && spec.shape.size() <= kMaxDimensions && size != kImpossible;
    if (!possible || !file_.add(spec.name, offset, size))
      raise<Error>("{} cannot be written with a tensor '{}' of {} and shape [{}]{}", file.string(),
                   excerpt(spec.name), name_of(spec.type), fmt::join(spec.shape, ", "),
                   possible ? " beside another of that name" : "");
    head.text(spec.name);
    head.number(static_cast<uint32_t>(spec.shape.size()));
    for (auto extent = spec.shape.rbegin(); extent != spec.shape.rend(); ++extent)
      head.number(static_cast<uint64_t>(*extent));
    head.number(static_cast<uint32_t>(spec.type));
    head.number(offset);
    offset = aligned(offset + size, kAlignment);
  }
  head.bytes().resize(aligned(head.bytes().size(), kAlignment));
  // The padding behind the last tensor belongs to the file.
  file_.write_head(head.bytes(), offset);
}

} // namespace pentatron
