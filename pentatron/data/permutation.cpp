#include "pentatron/data/permutation.h"

#include <algorithm>
#include <bit>

#include "pentatron/base/error.h"

namespace pentatron::data {

namespace {
constexpr uint64_t kRounds = 8; // 4 suffice for large halves, small ones need more to mix
}

Permutation::Permutation(uint64_t seed, std::string_view name, uint64_t epoch, uint64_t size)
    : stream_(seed, name), epoch_(epoch), size_(size) {
  PT_DCHECK(size >= 1);
  half_bits_ = std::max(1, (static_cast<int>(std::bit_width(size - 1)) + 1) / 2);
}

uint64_t Permutation::encrypt(uint64_t value) const {
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  uint64_t left = value >> half_bits_;
  uint64_t right = value & mask;
  for (uint64_t round = 0; round < kRounds; ++round) {
    const uint64_t mixed = left ^ (stream_.bits(epoch_, (round << 32) | right)[0] & mask);
    left = right;
    right = mixed;
  }
  return (left << half_bits_) | right;
}

uint64_t Permutation::operator()(uint64_t i) const {
  PT_DCHECK(i < size_);
  do {
    i = encrypt(i);
  } while (i >= size_);
  return i;
}

} // namespace pentatron::data
