#include "pentatron/evaluation/tasks/python_random.h"

#include <bit>
#include <cmath>
#include <numeric>
#include <unordered_set>

namespace pentatron::evaluation {

namespace {

constexpr size_t kN = 624, kM = 397;

} // namespace

PythonRandom::PythonRandom(uint64_t seed) {
  // init_by_array of the seed's 32-bit digits.
  std::vector<uint32_t> key = {static_cast<uint32_t>(seed)};
  if (seed >> 32 != 0) key.push_back(static_cast<uint32_t>(seed >> 32));
  state_[0] = 19650218u;
  for (size_t i = 1; i < kN; ++i)
    state_[i] = 1812433253u * (state_[i - 1] ^ (state_[i - 1] >> 30)) + static_cast<uint32_t>(i);
  size_t i = 1, j = 0;
  const auto step = [&] {
    if (++i >= kN) {
      state_[0] = state_[kN - 1];
      i = 1;
    }
  };
  for (size_t k = kN; k > 0; --k) {
    state_[i] = (state_[i] ^ ((state_[i - 1] ^ (state_[i - 1] >> 30)) * 1664525u)) + key[j] +
                static_cast<uint32_t>(j);
    step();
    if (++j >= key.size()) j = 0;
  }
  for (size_t k = kN - 1; k > 0; --k) {
    state_[i] = (state_[i] ^ ((state_[i - 1] ^ (state_[i - 1] >> 30)) * 1566083941u)) -
                static_cast<uint32_t>(i);
    step();
  }
  state_[0] = 0x80000000u;
}

uint32_t PythonRandom::next() {
  if (at_ == kN) {
    for (size_t i = 0; i < kN; ++i) {
      const uint32_t y = (state_[i] & 0x80000000u) | (state_[(i + 1) % kN] & 0x7fffffffu);
      state_[i] = state_[(i + kM) % kN] ^ (y >> 1) ^ ((y & 1u) != 0 ? 0x9908b0dfu : 0u);
    }
    at_ = 0;
  }
  uint32_t y = state_[at_++];
  y ^= y >> 11;
  y ^= (y << 7) & 0x9d2c5680u;
  y ^= (y << 15) & 0xefc60000u;
  return y ^ (y >> 18);
}

double PythonRandom::real() {
  const uint32_t a = next() >> 5, b = next() >> 6;
  return (a * 67108864.0 + b) / 9007199254740992.0;
}

uint64_t PythonRandom::below(uint64_t n) {
  const int bits = std::bit_width(n);
  uint64_t value = n;
  while (value >= n) {
    if (bits <= 32) {
      value = bits == 0 ? 0 : next() >> (32 - bits);
    } else {
      const uint64_t low = next();
      value = (static_cast<uint64_t>(next() >> (64 - bits)) << 32) | low;
    }
    if (n == 0) break;
  }
  return value;
}

std::vector<size_t> PythonRandom::sample(size_t n, size_t count) {
  std::vector<size_t> result;
  size_t set_size = 21;
  if (count > 5)
    set_size += static_cast<size_t>(
        std::pow(4.0, std::ceil(std::log(static_cast<double>(count) * 3) / std::log(4.0))));
  if (n <= set_size) {
    std::vector<size_t> pool(n);
    std::iota(pool.begin(), pool.end(), size_t{0});
    for (size_t i = 0; i < count; ++i) {
      const size_t j = below(n - i);
      result.push_back(pool[j]);
      pool[j] = pool[n - i - 1];
    }
    return result;
  }
  std::unordered_set<size_t> seen;
  while (result.size() < count) {
    const size_t j = below(n);
    if (seen.insert(j).second) result.push_back(j);
  }
  return result;
}

} // namespace pentatron::evaluation
