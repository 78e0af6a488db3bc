/// Which tokens a text begins with.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace pentatron::data::tokenizer {

/// A tree of bytes in a flat hash table.
class Trie {
 public:
  Trie() : slots_(64), values_(1, -1) {}

  /// A text added twice keeps the last value, which is not negative.
  void add(std::string_view text, int32_t value);

  static constexpr uint32_t kRoot = 0;
  static constexpr uint32_t kNone = 0xFFFFFFFF;
  /// The node below `node` by `byte`, or kNone.
  uint32_t step(uint32_t node, char byte) const {
    const uint64_t key = key_of(node, byte);
    for (size_t i = hash(key) & (slots_.size() - 1);; i = (i + 1) & (slots_.size() - 1)) {
      if (slots_[i].key == key) return slots_[i].child;
      if (slots_[i].key == kEmpty) return kNone;
    }
  }
  /// The value of the text that leads to `node`, or -1.
  int32_t value(uint32_t node) const { return values_[node]; }

  struct Found {
    size_t length = 0; ///< 0: nothing
    int32_t value = -1;
  };
  /// The longest text added that `text` begins with.
  Found longest(std::string_view text) const;
  bool empty() const { return values_.size() == 1; }

 private:
  static constexpr uint64_t kEmpty = ~uint64_t{0};
  struct Slot {
    uint64_t key = kEmpty;
    uint32_t child = kNone;
  };
  static uint64_t key_of(uint32_t node, char byte) {
    return uint64_t{node} << 8 | static_cast<unsigned char>(byte);
  }
  static uint64_t hash(uint64_t key) {
    key *= 0x9E3779B97F4A7C15u;
    return key >> 32;
  }
  void grow();

  std::vector<Slot> slots_;
  std::vector<int32_t> values_; // by node
};

} // namespace pentatron::data::tokenizer
