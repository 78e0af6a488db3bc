#include "pentatron/data/gpt/random_state.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace pentatron::data {

namespace {

constexpr size_t kShift = 397;
constexpr uint64_t kBatch = 256; // draws made before their swaps, so that memory is fetched ahead

constexpr uint32_t twisted(uint32_t upper, uint32_t lower) {
  const uint32_t mixed = (upper & 0x80000000u) | (lower & 0x7FFFFFFFu);
  return (mixed >> 1) ^ (0x9908B0DFu & (0u - (lower & 1u)));
}

constexpr uint32_t tempered(uint32_t y) {
  y ^= y >> 11;
  y ^= (y << 7) & 0x9D2C5680u;
  y ^= (y << 15) & 0xEFC60000u;
  return y ^ (y >> 18);
}

} // namespace

RandomState::RandomState(uint32_t seed) {
  for (uint32_t i = 0; i < kWords; ++i) {
    state_[i] = seed;
    seed = 1812433253u * (seed ^ (seed >> 30)) + i + 1;
  }
}

void RandomState::refill() {
  uint32_t* s = state_.data();
  // In three parts, each without a dependence between neighbours, so that they vectorise.
  for (size_t i = 0; i < kWords - kShift; ++i) s[i] = s[i + kShift] ^ twisted(s[i], s[i + 1]);
  for (size_t i = kWords - kShift; i < kWords - 1; ++i)
    s[i] = s[i + kShift - kWords] ^ twisted(s[i], s[i + 1]);
  s[kWords - 1] = s[kShift - 1] ^ twisted(s[kWords - 1], s[0]);
  for (size_t i = 0; i < kWords; ++i) output_[i] = tempered(s[i]);
  position_ = 0;
}

template <class T> void RandomState::shuffle_values(std::span<T> values) {
  if (values.size() < 2) return;
  T* data = values.data();
  uint64_t i = values.size() - 1;
  for (; i > 0xFFFFFFFFu; --i) {
    const uint64_t mask = ~uint64_t{0} >> std::countl_zero(i);
    uint64_t j = next64() & mask;
    while (j > i) j = next64() & mask;
    std::swap(data[i], data[j]);
  }
  std::array<uint32_t, kBatch> places;
  while (i > 0) {
    // The mask is that of every i down to a power of two.
    const auto mask = static_cast<uint32_t>(~uint64_t{0} >> std::countl_zero(i));
    const uint64_t count = std::min<uint64_t>(kBatch, i - (mask >> 1));
    // Branchless: a draw that is refused is overwritten by the next one.
    const auto first = static_cast<uint32_t>(i);
    uint32_t made = 0;
    while (made < count) {
      if (position_ == kWords) refill();
      const auto room = std::min<uint64_t>(kWords - position_, count - made);
      const uint32_t* words = output_.data() + position_;
      for (uint64_t k = 0; k < room; ++k) {
        const uint32_t j = words[k] & mask;
        places[made] = j;
        made += static_cast<uint32_t>(j <= first - made);
      }
      position_ += room;
    }
    for (uint64_t k = 0; k < count; ++k) __builtin_prefetch(data + places[k], 1);
    for (uint64_t k = 0; k < count; ++k) std::swap(data[i - k], data[places[k]]);
    i -= count;
  }
}

void RandomState::shuffle(std::span<int32_t> values) {
  shuffle_values(values);
}

void RandomState::shuffle(std::span<uint32_t> values) {
  shuffle_values(values);
}

void RandomState::shuffle(std::span<int64_t> values) {
  shuffle_values(values);
}

} // namespace pentatron::data
