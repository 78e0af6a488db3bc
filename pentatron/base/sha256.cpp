#include "pentatron/base/sha256.h"

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include <fmt/format.h>

namespace pentatron {

namespace {

constexpr size_t kBlock = 64;

/// The first 32 bits behind the point of the roots of the first primes (FIPS 180-4, 4.2.2, 5.3.3).
constexpr std::array<uint32_t, 64> kRounds = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

using Hash = std::array<uint32_t, 8>;
constexpr Hash kStart = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                         0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

/// FIPS 180-4, 6.2.2.
void add_block(Hash& hash, std::string_view block) {
  std::array<uint32_t, 64> w{};
  for (size_t i = 0; i < kBlock; ++i)
    w[i / 4] = w[i / 4] << 8 | static_cast<unsigned char>(block[i]);
  for (size_t t = 16; t < 64; ++t) {
    const uint32_t a = std::rotr(w[t - 15], 7) ^ std::rotr(w[t - 15], 18) ^ w[t - 15] >> 3;
    const uint32_t b = std::rotr(w[t - 2], 17) ^ std::rotr(w[t - 2], 19) ^ w[t - 2] >> 10;
    w[t] = w[t - 16] + a + w[t - 7] + b;
  }
  auto [a, b, c, d, e, f, g, h] = hash;
  for (size_t t = 0; t < 64; ++t) {
    const uint32_t one = h + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) +
                         ((e & f) ^ (~e & g)) + kRounds[t] + w[t];
    const uint32_t two =
        (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
    h = g;
    g = f;
    f = e;
    e = d + one;
    d = c;
    c = b;
    b = a;
    a = one + two;
  }
  const Hash add = {a, b, c, d, e, f, g, h};
  for (size_t i = 0; i < hash.size(); ++i) hash[i] += add[i];
}

} // namespace

std::string sha256(std::string_view text) {
  Hash hash = kStart;
  const uint64_t bits = uint64_t{text.size()} * 8;
  for (; text.size() >= kBlock; text.remove_prefix(kBlock)) add_block(hash, text);
  std::string last(text);
  last += '\x80';
  last.resize((last.size() + 8 + kBlock - 1) / kBlock * kBlock - 8);
  for (int shift = 56; shift >= 0; shift -= 8) last += static_cast<char>(bits >> shift & 0xff);
  for (std::string_view left = last; !left.empty(); left.remove_prefix(kBlock))
    add_block(hash, left);
  std::string hex;
  for (const uint32_t word : hash) fmt::format_to(std::back_inserter(hex), "{:08x}", word);
  return hex;
}

} // namespace pentatron
