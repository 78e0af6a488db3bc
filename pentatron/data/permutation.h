/// A random permutation of [0, size) that is computed element by element: no table, so that any
/// sample's place is known without the others.
///
/// A Feistel network over the smallest square of a power of two that holds `size`, with Philox as
/// its round function; values outside the range are walked on until one is inside (cycle walking).
/// Source: Black & Rogaway 2002, "Ciphers with arbitrary finite domains", CT-RSA.
#pragma once

#include <cstdint>
#include <string_view>

#include "pentatron/base/philox.h"

namespace pentatron::data {

class Permutation {
 public:
  /// size >= 1. The permutations of different (seed, name, epoch) are independent.
  Permutation(uint64_t seed, std::string_view name, uint64_t epoch, uint64_t size);

  /// Where `i` < size goes.
  uint64_t operator()(uint64_t i) const;

 private:
  uint64_t encrypt(uint64_t value) const;

  Stream stream_;
  uint64_t epoch_;
  uint64_t size_;
  int half_bits_;
};

} // namespace pentatron::data
