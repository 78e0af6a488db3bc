/// CRC-32C (Castagnoli, polynomial 0x1EDC6F41, reflected), as iSCSI, TFRecord and our checkpoints
/// use it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace pentatron {

/// The checksum of `bytes`, continuing one that ended with `crc`: crc32c(b, crc32c(a)) is that of a
/// followed by b. As fast as memory where the processor multiplies polynomials of 512 bits; 8 bytes
/// a cycle, with SSE4.2's instruction on three streams at once, where it has that.
uint32_t crc32c(std::span<const std::byte> bytes, uint32_t crc = 0);

/// The checksum of a followed by b, from those of a and of b and the length of b, in a time that
/// grows with the logarithm of the length. Linear: the checksum of several parts is the xor of
/// crc32c_combine(part, 0, bytes that follow it), in any order.
uint32_t crc32c_combine(uint32_t a, uint32_t b, uint64_t length_b);

/// What crc32c() does where the processor has only SSE4.2; not to be called where it lacks that.
uint32_t crc32c_streams(std::span<const std::byte> bytes, uint32_t crc = 0);

/// The same by tables alone: the definition that the fast ones are tested against.
uint32_t crc32c_portable(std::span<const std::byte> bytes, uint32_t crc = 0);

/// TFRecord stores checksums in this form, so that a checksum of data which holds checksums stays
/// good.
constexpr uint32_t mask_crc32c(uint32_t crc) {
  return ((crc >> 15) | (crc << 17)) + 0xA282EAD8u;
}

} // namespace pentatron
