#include "pentatron/base/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace pentatron {

namespace {

using Tables = std::array<std::array<uint32_t, 256>, 8>;

constexpr Tables make_tables() {
  Tables t{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t c = i;
    for (int bit = 0; bit < 8; ++bit) c = (c >> 1) ^ ((c & 1) != 0 ? 0x82F63B78u : 0u);
    t[0][i] = c;
  }
  for (size_t k = 1; k < 8; ++k) {
    for (size_t i = 0; i < 256; ++i) t[k][i] = (t[k - 1][i] >> 8) ^ t[0][t[k - 1][i] & 0xFF];
  }
  return t;
}

constexpr Tables kTables = make_tables();

uint64_t load8(const std::byte* p) {
  uint64_t v = 0;
  std::memcpy(&v, p, sizeof v);
  return v; // little endian, as every machine we build for
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) uint32_t hardware(std::span<const std::byte> bytes,
                                                    uint32_t crc) {
  uint64_t c = ~crc;
  const std::byte* p = bytes.data();
  size_t n = bytes.size();
  for (; n >= 8; n -= 8, p += 8) c = _mm_crc32_u64(c, load8(p));
  auto tail = static_cast<uint32_t>(c);
  for (; n > 0; --n, ++p) tail = _mm_crc32_u8(tail, static_cast<uint8_t>(*p));
  return ~tail;
}
#endif

} // namespace

uint32_t crc32c_portable(std::span<const std::byte> bytes, uint32_t crc) {
  uint32_t c = ~crc;
  const std::byte* p = bytes.data();
  size_t n = bytes.size();
  for (; n >= 8; n -= 8, p += 8) {
    const uint64_t v = load8(p) ^ c;
    c = 0;
    for (size_t k = 0; k < 8; ++k) c ^= kTables[7 - k][(v >> (8 * k)) & 0xFF];
  }
  for (; n > 0; --n, ++p) c = (c >> 8) ^ kTables[0][(c ^ static_cast<uint8_t>(*p)) & 0xFF];
  return ~c;
}

uint32_t crc32c(std::span<const std::byte> bytes, uint32_t crc) {
#if defined(__x86_64__)
  static const bool fast = __builtin_cpu_supports("sse4.2") != 0;
  if (fast) return hardware(bytes, crc);
#endif
  return crc32c_portable(bytes, crc);
}

} // namespace pentatron
