#include "pentatron/base/philox.h"

#include <cmath>
#include <numbers>

namespace pentatron {

namespace {

uint64_t mix(uint64_t x) { // the finaliser of SplitMix64
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

} // namespace

Stream::Stream(uint64_t seed, std::string_view name) {
  uint64_t hash = mix(seed + 0x9E3779B97F4A7C15u);
  for (const char c : name) hash = mix((hash ^ static_cast<unsigned char>(c)) * 0x100000001B3u);
  key_ = {static_cast<uint32_t>(hash), static_cast<uint32_t>(hash >> 32)};
}

double Stream::normal(uint64_t i, uint64_t j) const {
  const PhiloxBlock b = bits(i, j);
  // u1 in (0, 1], so that its logarithm is finite.
  const double u1 = static_cast<double>((((uint64_t{b[0]} << 32) | b[1]) >> 11) + 1) * 0x1.0p-53;
  const double u2 = static_cast<double>(((uint64_t{b[2]} << 32) | b[3]) >> 11) * 0x1.0p-53;
  return std::sqrt(-2.0 * std::log(u1)) * std::cos(2.0 * std::numbers::pi * u2);
}

} // namespace pentatron
