/// Safetensors files: a JSON header, then named tensors. The reader and writer do not need
/// LibTorch.
///
/// Layout: u64 length of the header (little endian), the header, then the data of all tensors
/// without gaps. The reader maps the file and hands out spans into it; everything in the header is
/// checked before anything is used. Refused with DataError: a header above 100 MB or longer than
/// the file, JSON that does not begin with '{' or repeats a key, unknown dtypes and members,
/// metadata that is not text, a size that is not shape x dtype, overflow, overlap, holes, bytes
/// after the last tensor. Source: https://huggingface.co/docs/safetensors, checked against the
/// Python package safetensors 0.8.0.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "pentatron/base/mapped_file.h"
#include "pentatron/base/parts_file.h"

namespace pentatron {

enum class SafeDtype : uint8_t {
  kF64,
  kF32,
  kF16,
  kBF16,
  kI64,
  kI32,
  kI16,
  kI8,
  kU64,
  kU32,
  kU16,
  kU8,
  kBool,
  kF8E4M3,
  kF8E5M2
};
size_t size_of(SafeDtype dtype);                       ///< bytes an element
std::string_view name_of(SafeDtype dtype);             ///< "F32", as files spell it
SafeDtype safe_dtype_from_name(std::string_view name); ///< throws DataError

/// One tensor, contiguous and row-major. `data` is valid while its file is; it need not be aligned
/// to the element.
struct SafeTensor {
  SafeDtype dtype = SafeDtype::kF32;
  std::vector<int64_t> shape; ///< empty for a scalar
  std::span<const std::byte> data;
  int64_t numel() const { return static_cast<int64_t>(data.size() / size_of(dtype)); }
};

using SafeTensors = std::map<std::string, SafeTensor, std::less<>>;
using SafeMetadata = std::map<std::string, std::string, std::less<>>;

/// Checks `bytes` as a whole file; the tensors point into it. `origin` names it in messages.
struct ParsedSafetensors {
  SafeTensors tensors;
  SafeMetadata metadata;
};
ParsedSafetensors parse_safetensors(std::span<const std::byte> bytes, std::string_view origin);

/// One mapped file.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& file);

  const SafeTensors& tensors() const { return content_.tensors; }
  const SafeMetadata& metadata() const { return content_.metadata; }
  const SafeTensor* find(std::string_view name) const;
  /// Throws DataError with the nearest name.
  const SafeTensor& at(std::string_view name) const;
  const MappedFile& file() const { return file_; }

 private:
  MappedFile file_;
  ParsedSafetensors content_;
};

/// The weights of a Hugging Face folder: `model.safetensors`, or the files that
/// `model.safetensors.index.json` lists.
class SafetensorsFolder {
 public:
  /// Throws DataError if neither is there, a listed file is not a plain name in the folder, or a
  /// tensor is not in the file that the index names.
  explicit SafetensorsFolder(const std::filesystem::path& folder);

  const SafeTensors& tensors() const { return tensors_; }
  const SafeTensor* find(std::string_view name) const;
  /// Throws DataError with the nearest name.
  const SafeTensor& at(std::string_view name) const;
  /// Throws DataError if a file was shortened since it was opened.
  void check_sizes() const;

 private:
  std::filesystem::path folder_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  SafeTensors tensors_;
};

/// What will be written.
struct SafeTensorSpec {
  std::string name;
  SafeDtype dtype = SafeDtype::kF32;
  std::vector<int64_t> shape;
};

/// How the writer lays out a file. Tensors lie by element size, largest first, then by name, behind
/// a header that ends with a cache line (64 bytes): so each is aligned to its element.
struct SafetensorsLayout {
  struct Place {
    uint64_t begin = 0; ///< from the start of the file
    uint64_t size = 0;
  };
  std::string head; ///< the length and the header
  std::map<std::string, Place, std::less<>> places;
  uint64_t bytes = 0; ///< of the whole file
};
/// Throws Error, naming `origin`, for a repeated name, a negative extent or a size beyond 2^62.
SafetensorsLayout layout_safetensors(std::vector<SafeTensorSpec> specs,
                                     const SafeMetadata& metadata, std::string_view origin);

/// Writes a file whose tensors arrive in any order and in parts. The file appears at
/// finish() or not at all.
class SafetensorsWriter {
 public:
  /// Throws what layout_safetensors() does.
  SafetensorsWriter(const std::filesystem::path& file, std::vector<SafeTensorSpec> specs,
                    const SafeMetadata& metadata = {});

  /// The bytes of `name` from byte `offset` of it on. Throws Error if they do not fit.
  void write(std::string_view name, std::span<const std::byte> bytes, uint64_t offset = 0) {
    file_.write(name, bytes, offset);
  }
  /// Throws Error if the bytes of some tensor were not written.
  void finish() { file_.finish(); }

 private:
  PartsFile file_;
};

/// Everything at once.
void write_safetensors(const std::filesystem::path& file, const SafeTensors& tensors,
                       const SafeMetadata& metadata = {});

} // namespace pentatron
