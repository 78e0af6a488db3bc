/// The file pair PREFIX.bin and PREFIX.idx of Megatron's indexed datasets.
///
/// PREFIX.bin is the token arrays back to back. PREFIX.idx, little-endian and packed:
///   9 bytes  "MMIDIDX\0\0"         magic
///   u64      1                     version
///   u8                             dtype, a code of IndexedDtype
///   u64      N                     sequence_count
///   u64      D                     document_count: documents + 1
///   i32 [N]                        sequence_lengths, in tokens
///   i64 [N]                        sequence_pointers, where each begins in .bin, in bytes
///   i64 [D]                        document_indices: the first sequence of each document, then N
///   i8  [N]                        sequence_modes, of multimodal datasets only
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace pentatron::data {

enum class IndexedDtype : uint8_t {
  kU8 = 1,
  kI8 = 2,
  kI16 = 3,
  kI32 = 4,
  kI64 = 5,
  kF64 = 6,
  kF32 = 7,
  kU16 = 8
};

inline constexpr std::string_view kIndexMagic{"MMIDIDX\0\0", 9};
inline constexpr uint64_t kIndexVersion = 1;
inline constexpr uint64_t kIndexHeaderBytes = 34;

/// The dtype of a code; nothing for an unknown code.
std::optional<IndexedDtype> dtype_of_code(uint8_t code);
int64_t item_bytes(IndexedDtype dtype);
std::string_view name_of(IndexedDtype dtype);
/// Whether tokens can be of it: not the floating-point ones.
bool is_integer(IndexedDtype dtype);
/// The smallest and the largest token that fits.
std::array<int64_t, 2> token_range(IndexedDtype dtype);
/// What Megatron writes for a vocabulary: 16 bits below 65500 tokens, else 32.
IndexedDtype dtype_for_vocabulary(int64_t vocab_size);

} // namespace pentatron::data
