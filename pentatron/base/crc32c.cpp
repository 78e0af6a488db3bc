#include "pentatron/base/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
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

// Polynomials over GF(2) modulo that of CRC-32C; bit 31 is the coefficient of x^0.
constexpr uint32_t kOne = uint32_t{1} << 31;

constexpr uint32_t multiply(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (; a != 0; a <<= 1) {
    if ((a & kOne) != 0) product ^= b;
    b = (b >> 1) ^ ((b & 1) != 0 ? 0x82F63B78u : 0u); // times x
  }
  return product;
}

constexpr std::array<uint32_t, 67> make_powers() {
  std::array<uint32_t, 67> powers{};
  powers[0] = kOne >> 1;
  for (size_t k = 1; k < powers.size(); ++k) powers[k] = multiply(powers[k - 1], powers[k - 1]);
  return powers;
}

constexpr std::array<uint32_t, 67> kPowers = make_powers(); // x^(2^k)

/// x^(8 bytes): what appending so many zero bytes multiplies a checksum by.
constexpr uint32_t shift_of(uint64_t bytes) {
  uint32_t power = kOne;
  for (size_t k = 3; bytes != 0; ++k, bytes >>= 1) {
    if ((bytes & 1) != 0) power = multiply(power, kPowers[k]);
  }
  return power;
}

#if defined(__x86_64__)
/// Multiplication by shift_of(bytes), a table for each byte of the checksum.
using ShiftTables = std::array<std::array<uint32_t, 256>, 4>;

constexpr ShiftTables make_shift_tables(uint64_t bytes) {
  ShiftTables t{};
  const uint32_t shift = shift_of(bytes);
  for (size_t k = 0; k < 4; ++k) {
    for (size_t bit = 0; bit < 8; ++bit) {
      const uint32_t column = multiply(shift, uint32_t{1} << (8 * k + bit));
      for (size_t i = 0; i < size_t{1} << bit; ++i) t[k][(size_t{1} << bit) + i] = t[k][i] ^ column;
    }
  }
  return t;
}

template <size_t kBytes> constexpr ShiftTables kShift = make_shift_tables(kBytes);

/// Three streams of kBytes each: the instruction takes three cycles but can begin every cycle.
template <size_t kBytes>
__attribute__((target("sse4.2"))) uint64_t three_streams(const std::byte*& p, size_t& n,
                                                         uint64_t c) {
  const auto shifted = [](uint64_t crc) {
    const ShiftTables& t = kShift<kBytes>;
    return uint64_t{t[0][crc & 0xFF] ^ t[1][crc >> 8 & 0xFF] ^ t[2][crc >> 16 & 0xFF] ^
                    t[3][crc >> 24 & 0xFF]};
  };
  for (; n >= 3 * kBytes; n -= 3 * kBytes, p += 3 * kBytes) {
    uint64_t second = 0;
    uint64_t third = 0;
    for (size_t i = 0; i < kBytes; i += 8) {
      c = _mm_crc32_u64(c, load8(p + i));
      second = _mm_crc32_u64(second, load8(p + kBytes + i));
      third = _mm_crc32_u64(third, load8(p + 2 * kBytes + i));
    }
    c = shifted(shifted(c) ^ second) ^ third;
  }
  return c;
}

// The bytes as a polynomial, 512 bits at a time (Gopal et al., "Fast CRC computation for generic
// polynomials using PCLMULQDQ", Intel 2009): what lies D bits before other bytes may be added to
// them after multiplication by x^D modulo the polynomial. Of each 128 bits the low half takes
// x^(D+32), the high half x^(D-32); the product of two reflected halves is short of x^32.
#define PENTATRON_FOLDING target("avx512f,avx512dq,vpclmulqdq,pclmul,sse4.2")

constexpr int64_t fold_low(uint64_t bits) {
  return int64_t{shift_of(bits / 8 + 4)} << 1;
}
constexpr int64_t fold_high(uint64_t bits) {
  return int64_t{shift_of(bits / 8 - 4)} << 1;
}

__attribute__((PENTATRON_FOLDING)) inline __m512i products(__m512i x, __m512i factors) {
  return _mm512_xor_si512(_mm512_clmulepi64_epi128(x, factors, 0x00),
                          _mm512_clmulepi64_epi128(x, factors, 0x11));
}

__attribute__((PENTATRON_FOLDING)) inline __m512i factors_of(uint64_t bits) {
  const int64_t low = fold_low(bits), high = fold_high(bits);
  return _mm512_set_epi64(high, low, high, low, high, low, high, low);
}

/// All whole blocks of 64 bytes; n >= 256.
__attribute__((PENTATRON_FOLDING)) uint64_t folded(const std::byte*& p, size_t& n, uint64_t c) {
  const __m512i by2048 = factors_of(2048), by512 = factors_of(512);
  const __m512i state = _mm512_set_epi64(0, 0, 0, 0, 0, 0, 0, static_cast<int64_t>(c));
  __m512i x0 = _mm512_xor_si512(_mm512_loadu_si512(p), state);
  __m512i x1 = _mm512_loadu_si512(p + 64);
  __m512i x2 = _mm512_loadu_si512(p + 128);
  __m512i x3 = _mm512_loadu_si512(p + 192);
  for (p += 256, n -= 256; n >= 256; p += 256, n -= 256) {
    x0 = _mm512_xor_si512(products(x0, by2048), _mm512_loadu_si512(p));
    x1 = _mm512_xor_si512(products(x1, by2048), _mm512_loadu_si512(p + 64));
    x2 = _mm512_xor_si512(products(x2, by2048), _mm512_loadu_si512(p + 128));
    x3 = _mm512_xor_si512(products(x3, by2048), _mm512_loadu_si512(p + 192));
  }
  x1 = _mm512_xor_si512(x1, products(x0, by512));
  x2 = _mm512_xor_si512(x2, products(x1, by512));
  x3 = _mm512_xor_si512(x3, products(x2, by512));
  for (; n >= 64; p += 64, n -= 64)
    x3 = _mm512_xor_si512(products(x3, by512), _mm512_loadu_si512(p));
  // The 128 bits of the last lane stay where they are.
  const __m512i lanes = _mm512_set_epi64(0, 0, fold_high(128), fold_low(128), fold_high(256),
                                         fold_low(256), fold_high(384), fold_low(384));
  const __m512i moved = products(x3, lanes);
  alignas(64) std::array<uint64_t, 8> other, last;
  _mm512_store_si512(other.data(), moved);
  _mm512_store_si512(last.data(), x3);
  const uint64_t low = other[0] ^ other[2] ^ other[4] ^ last[6];
  const uint64_t high = other[1] ^ other[3] ^ other[5] ^ last[7];
  return _mm_crc32_u64(_mm_crc32_u64(0, low), high);
}

__attribute__((target("sse4.2"))) uint32_t streams(std::span<const std::byte> bytes, uint64_t c) {
  const std::byte* p = bytes.data();
  size_t n = bytes.size();
  c = three_streams<4096>(p, n, c);
  c = three_streams<256>(p, n, c);
  for (; n >= 8; n -= 8, p += 8) c = _mm_crc32_u64(c, load8(p));
  auto tail = static_cast<uint32_t>(c);
  for (; n > 0; --n, ++p) tail = _mm_crc32_u8(tail, static_cast<uint8_t>(*p));
  return tail;
}
#endif

} // namespace

uint32_t crc32c_combine(uint32_t a, uint32_t b, uint64_t length_b) {
  return multiply(shift_of(length_b), a) ^ b;
}

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

uint32_t crc32c_streams(std::span<const std::byte> bytes, uint32_t crc) {
#if defined(__x86_64__)
  return ~streams(bytes, ~crc);
#else
  return crc32c_portable(bytes, crc);
#endif
}

uint32_t crc32c(std::span<const std::byte> bytes, uint32_t crc) {
#if defined(__x86_64__)
  static const bool fast = __builtin_cpu_supports("sse4.2") != 0;
  static const bool folds =
      fast && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("vpclmulqdq");
  if (folds && bytes.size() >= 256) {
    const std::byte* p = bytes.data();
    size_t n = bytes.size();
    const uint64_t c = folded(p, n, ~crc);
    return ~streams({p, n}, c);
  }
  if (fast) return crc32c_streams(bytes, crc);
#endif
  return crc32c_portable(bytes, crc);
}

} // namespace pentatron
