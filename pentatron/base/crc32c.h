/// CRC-32C (Castagnoli, polynomial 0x1EDC6F41, reflected), as iSCSI, TFRecord and our checkpoints
/// use it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace pentatron {

/// The checksum of `bytes`, continuing from `crc`: crc32c(b, crc32c(a)) is the checksum of a
/// followed by b. With 512-bit polynomial multiplication it is as fast as memory; with the SSE4.2
/// instruction, on three streams at once, it processes 8 bytes per cycle.
uint32_t crc32c(std::span<const std::byte> bytes, uint32_t crc = 0);

/// The checksum of a followed by b, from the checksums of a and b and the length of b, in a time
/// that grows with the logarithm of the length. Linear: the checksum of several parts is the xor of
/// crc32c_combine(part, 0, bytes that follow it), in any order.
uint32_t crc32c_combine(uint32_t a, uint32_t b, uint64_t length_b);

/// What crc32c() does where the processor has only SSE4.2; not to be called where it lacks that.
uint32_t crc32c_streams(std::span<const std::byte> bytes, uint32_t crc = 0);

/// crc32c() computed only with tables: the reference for tests of the fast versions.
uint32_t crc32c_portable(std::span<const std::byte> bytes, uint32_t crc = 0);

/// TFRecord stores checksums in this form, so that a checksum of data which holds checksums stays
/// good.
constexpr uint32_t mask_crc32c(uint32_t crc) {
  return ((crc >> 15) | (crc << 17)) + 0xA282EAD8u;
}

} // namespace pentatron
