/// GGUF files (of ggml and llama.cpp), versions 2 and 3, little endian: metadata and named tensors.
///
/// Layout: "GGUF", version, number of tensors and of metadata entries; the entries; for every
/// tensor its name, extents (the fastest first), type and offset; then, at the next multiple of the
/// alignment, the data, each tensor at such a multiple. The reader maps the file and hands out
/// spans into it; every count, size and offset is checked against the file before anything is
/// allocated or read. Refused with DataError: other versions and big-endian files, repeated keys
/// and tensor names, more than 4 dimensions, extents that are not a multiple of the block size,
/// overlap, anything outside the file.
/// Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, checked against the Python
/// package gguf 0.19.0.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "pentatron/base/mapped_file.h"
#include "pentatron/base/parts_file.h"

namespace pentatron {

/// The number of a tensor's type in the file. Others than these are known by size and name only.
enum class GgmlType : uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ2_K = 10,
  kQ3_K = 11,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kIQ4_NL = 20,
  kIQ4_XS = 23,
  kBF16 = 30,
  kMXFP4 = 39
};
/// Elements lie in blocks of `elements` in `bytes`.
struct GgmlBlock {
  std::string_view name; ///< "Q4_K", as ggml spells it
  uint64_t elements = 1;
  uint64_t bytes = 0;
};
/// Null for a number that ggml has not given out (or had withdrawn).
const GgmlBlock* ggml_block(GgmlType type);
/// "Q4_K", or "type 99".
std::string name_of(GgmlType type);

struct GgufArray;
/// The index of the alternative is the value's type in the file.
using GgufValue = std::variant<uint8_t, int8_t, uint16_t, int16_t, uint32_t, int32_t, float, bool,
                               std::string, GgufArray, uint64_t, int64_t, double>;
/// A list of values of one type, in the same order of types.
struct GgufArray {
  std::variant<std::vector<uint8_t>, std::vector<int8_t>, std::vector<uint16_t>,
               std::vector<int16_t>, std::vector<uint32_t>, std::vector<int32_t>,
               std::vector<float>, std::vector<bool>, std::vector<std::string>,
               std::vector<GgufArray>, std::vector<uint64_t>, std::vector<int64_t>,
               std::vector<double>>
      items;
  size_t size() const;
  bool operator==(const GgufArray& other) const;
};
/// In the order of the file.
using GgufMetadata = std::vector<std::pair<std::string, GgufValue>>;

/// A list of metadata with access by key. Every getter throws DataError if the value is of another
/// kind; `find` and those with a default do not mind if it is missing.
class GgufKeys {
 public:
  GgufKeys() = default;
  GgufKeys(GgufMetadata metadata, std::string origin);

  const GgufMetadata& all() const { return metadata_; }
  const GgufValue* find(std::string_view key) const;
  const std::string& text(std::string_view key) const;
  std::optional<std::string> find_text(std::string_view key) const;
  /// Any type of integer whose value fits.
  int64_t integer(std::string_view key) const;
  std::optional<int64_t> find_integer(std::string_view key) const;
  /// Any type of number.
  std::optional<double> find_number(std::string_view key) const;
  std::optional<bool> find_bool(std::string_view key) const;
  /// Null if it is missing.
  const std::vector<std::string>* find_texts(std::string_view key) const;
  std::optional<std::vector<int64_t>> find_integers(std::string_view key) const;
  std::optional<std::vector<double>> find_numbers(std::string_view key) const;
  const std::string& origin() const { return origin_; }

 private:
  [[noreturn]] void missing(std::string_view key) const;
  [[noreturn]] void wrong(std::string_view key, std::string_view kind) const;

  GgufMetadata metadata_;
  std::map<std::string, size_t, std::less<>> index_;
  std::string origin_;
};

/// Whether the file contains a tokenizer.
bool has_tokenizer(const GgufKeys& metadata);

/// One tensor. `data` is valid while its file is.
struct GgufTensor {
  std::string name;
  GgmlType type = GgmlType::kF32;
  std::vector<int64_t> shape;      ///< row-major: the last extent is the fastest; up to 4
  std::span<const std::byte> data; ///< empty if the type is unknown
};

struct ParsedGguf {
  uint32_t version = 3;
  GgufMetadata metadata;
  std::vector<GgufTensor> tensors; ///< in the order of the file
};
/// Checks `bytes` as a whole file; the tensors point into it. `origin` names it in messages.
ParsedGguf parse_gguf(std::span<const std::byte> bytes, const std::string& origin);

/// Whether a file begins as GGUF files do; false if it cannot be read.
bool is_gguf(const std::filesystem::path& file);

/// One mapped file.
class GgufFile {
 public:
  explicit GgufFile(const std::filesystem::path& file);

  const GgufKeys& metadata() const { return metadata_; }
  const std::vector<GgufTensor>& tensors() const { return tensors_; }
  const GgufTensor* find(std::string_view name) const;
  const MappedFile& file() const { return file_; }

 private:
  MappedFile file_;
  GgufKeys metadata_;
  std::vector<GgufTensor> tensors_;
  std::map<std::string_view, size_t> index_;
};

/// What will be written.
struct GgufTensorSpec {
  std::string name;
  GgmlType type = GgmlType::kF32;
  std::vector<int64_t> shape; ///< row-major
};

/// Writes a file (version 3) whose tensors arrive in any order and in parts; they lie as `specs`
/// has them. The file appears at finish() or not at all.
class GgufWriter {
 public:
  static constexpr uint64_t kAlignment = 32;
  /// Throws Error for what the reader would not take: repeated names, impossible shapes.
  GgufWriter(const std::filesystem::path& file, const GgufMetadata& metadata,
             const std::vector<GgufTensorSpec>& specs);

  /// The bytes of `name` from byte `offset` of it on. Throws Error if they do not fit.
  void write(std::string_view name, std::span<const std::byte> bytes, uint64_t offset = 0) {
    file_.write(name, bytes, offset);
  }
  /// Throws Error if the bytes of some tensor were not written.
  void finish() { file_.finish(); }

 private:
  PartsFile file_;
};

} // namespace pentatron
