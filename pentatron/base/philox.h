/// Philox-4x32-10, a counter-based random generator: every number has an address that does not
/// depend on who draws it.
///
/// A Stream is keyed by (seed, name); element i of it is the same on every rank, thread and layout.
/// Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3", SC'11.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace pentatron {

using PhiloxBlock = std::array<uint32_t, 4>;

/// Ten rounds on one 128-bit counter under a 64-bit key.
constexpr PhiloxBlock philox4x32(PhiloxBlock counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53u} * counter[0];
    const uint64_t product1 = uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key[0],
               static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key[1],
               static_cast<uint32_t>(product0)};
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return counter;
}

/// Random numbers addressed by a 64-bit index (and a second one where an address has two parts).
class Stream {
 public:
  Stream(uint64_t seed, std::string_view name);

  /// 128 random bits of address (i, j).
  PhiloxBlock bits(uint64_t i, uint64_t j = 0) const {
    return philox4x32({static_cast<uint32_t>(i), static_cast<uint32_t>(i >> 32),
                       static_cast<uint32_t>(j), static_cast<uint32_t>(j >> 32)},
                      key_);
  }

  /// Uniform in [0, 1) with 53 bits.
  double uniform(uint64_t i, uint64_t j = 0) const {
    const PhiloxBlock b = bits(i, j);
    return static_cast<double>(((uint64_t{b[0]} << 32) | b[1]) >> 11) * 0x1.0p-53;
  }

  /// Standard normal, by Box-Muller in fp64: one routine for every dtype, cast once by the caller.
  double normal(uint64_t i, uint64_t j = 0) const;

  /// Uniform in [0, n) without bias that matters: n is far below 2^64.
  uint64_t below(uint64_t n, uint64_t i, uint64_t j = 0) const {
    const PhiloxBlock b = bits(i, j);
    return static_cast<uint64_t>(
        (static_cast<unsigned __int128>((uint64_t{b[0]} << 32) | b[1]) * n) >> 64);
  }

  std::array<uint32_t, 2> key() const { return key_; }

 private:
  std::array<uint32_t, 2> key_;
};

} // namespace pentatron
