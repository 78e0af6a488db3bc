/// Byte-pair merging: the pair of neighbours with the lowest rank, the leftmost of equals, becomes
/// one token, until no pair has a rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace pentatron::data::tokenizer {

/// The rank and the result of every pair, in a flat hash table.
class Merges {
 public:
  static constexpr uint32_t kNone = 0xFFFFFFFF;
  struct Result {
    uint32_t rank = kNone;
    int32_t token = -1;
  };

  Merges() = default;
  /// Room for `count` pairs.
  explicit Merges(size_t count);
  /// A pair set twice keeps the last.
  void set(int32_t left, int32_t right, Result result);
  Result find(int32_t left, int32_t right) const {
    if (slots_.empty()) return {};
    const uint64_t key = key_of(left, right);
    for (size_t i = hash(key) & mask_;; i = (i + 1) & mask_) {
      if (slots_[i].key == key) return slots_[i].result;
      if (slots_[i].key == kEmpty) return {};
    }
  }
  size_t size() const { return size_; }

  /// Merges the symbols of one word in place. Linear, or n log n for long words. A symbol of -1 and
  /// below never merges.
  void apply(std::vector<int32_t>& symbols) const;

 private:
  static constexpr uint64_t kEmpty = ~uint64_t{0};
  struct Slot {
    uint64_t key = kEmpty;
    Result result;
  };
  static uint64_t key_of(int32_t left, int32_t right) {
    return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
  }
  static uint64_t hash(uint64_t key) {
    key *= 0x9E3779B97F4A7C15u;
    return key >> 32 ^ key >> 15;
  }
  void apply_short(std::vector<int32_t>& symbols) const;
  void apply_long(std::vector<int32_t>& symbols) const;

  std::vector<Slot> slots_;
  size_t mask_ = 0;
  size_t size_ = 0;
};

} // namespace pentatron::data::tokenizer
