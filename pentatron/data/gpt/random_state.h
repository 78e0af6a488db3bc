/// The random numbers of numpy's RandomState: MT19937 and the shuffle of `RandomState.shuffle`.
/// Source: Matsumoto & Nishimura 1998, "Mersenne Twister".
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace pentatron::data {

class RandomState {
 public:
  /// As RandomState(seed) for an integer below 2^32.
  explicit RandomState(uint32_t seed);

  uint32_t next() {
    if (position_ == kWords) refill();
    return output_[position_++];
  }
  /// The high word comes first.
  uint64_t next64() {
    const uint64_t high = next();
    return (high << 32) | next();
  }

  /// Fisher-Yates from the end, each place drawn by masked rejection; 32-bit draws up to 2^32
  /// elements, 64-bit ones above.
  void shuffle(std::span<int32_t> values);
  void shuffle(std::span<uint32_t> values);
  void shuffle(std::span<int64_t> values);

 private:
  static constexpr size_t kWords = 624;
  void refill();
  template <class T> void shuffle_values(std::span<T> values);

  std::array<uint32_t, kWords> state_;
  std::array<uint32_t, kWords> output_;
  size_t position_ = kWords;
};

} // namespace pentatron::data
