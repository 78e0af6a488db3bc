/// Python's random.Random, number for number: lm-eval draws shown examples and resamples with it.
///
/// Source: Matsumoto & Nishimura 1998, "Mersenne Twister" (MT19937); CPython's Lib/random.py.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace pentatron::evaluation {

class PythonRandom {
 public:
  explicit PythonRandom(uint64_t seed);

  /// In [0, 1), 53 bits.
  double real();
  /// In [0, n).
  uint64_t below(uint64_t n);
  /// `count` different places of [0, n), in the order in which random.sample gives them.
  std::vector<size_t> sample(size_t n, size_t count);
  /// One place of [0, n), as random.choices draws it.
  size_t choice(size_t n) { return static_cast<size_t>(real() * static_cast<double>(n)); }

 private:
  uint32_t next();
  std::array<uint32_t, 624> state_{};
  size_t at_ = 624;
};

} // namespace pentatron::evaluation
