/// The tokens of words met before: of one thread, in bounded memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

namespace pentatron::data::tokenizer {

/// Two tables in which a new word replaces an old one at the same place: words of up to 15 bytes
/// and 4 tokens in slots of half a cache line, longer ones in larger slots.
class WordCache {
 public:
  static constexpr size_t kMaxWordBytes = 62;

  WordCache();

  /// Appends the tokens of `word` (not empty) if they are known. `limit` is where the memory that
  /// holds the word ends: bytes up to there may be read.
  bool find(std::string_view word, const char* limit, std::vector<int32_t>& tokens) const {
    if (word.size() > kSmallBytes) return find_large(word, tokens);
    const Key key = load(word, limit);
    const Small& slot = small_[hash(key) & (kSmallSlots - 1)];
    if (slot.key.low != key.low || slot.key.high != key.high) return find_large(word, tokens);
    tokens.push_back(slot.tokens[0]);
    for (size_t i = 1; i < kSmallTokens && slot.tokens[i] >= 0; ++i)
      tokens.push_back(slot.tokens[i]);
    return true;
  }

  /// Remembers the tokens of `word`, unless they or it are too long.
  void insert(std::string_view word, const int32_t* tokens, size_t count);

 private:
  static constexpr size_t kSmallSlots = size_t{1} << 15;
  static constexpr size_t kLargeSlots = size_t{1} << 13;
  static constexpr size_t kSmallBytes = 15;
  static constexpr size_t kSmallTokens = 4;
  static constexpr size_t kLargeTokens = 16;

  /// The word's bytes, zeros behind, and in the last byte its length.
  struct Key {
    uint64_t low = 0, high = 0;
  };
  struct Small {
    Key key;
    int32_t tokens[kSmallTokens] = {-1, -1, -1, -1};
  };
  struct Large {
    uint8_t size = 0, count = 0;
    char word[kMaxWordBytes];
    int32_t tokens[kLargeTokens];
  };

  static Key load(std::string_view word, const char* limit) {
    Key key;
    if (limit - word.data() >= 16) {
      std::memcpy(&key, word.data(), 16);
      const size_t n = word.size();
      if (n < 8) {
        key.low &= (uint64_t{1} << (8 * n)) - 1;
        key.high = 0;
      } else {
        key.high &= (uint64_t{1} << (8 * (n - 8))) - 1;
      }
    } else {
      std::memcpy(&key, word.data(), word.size());
    }
    key.high |= uint64_t{word.size()} << 56;
    return key;
  }
  static uint64_t hash(const Key& key) {
    const uint64_t h = (key.low ^ key.high * 0x9E3779B97F4A7C15u) * 0xD6E8FEB86659FD93u;
    return h ^ h >> 32;
  }
  bool find_large(std::string_view word, std::vector<int32_t>& tokens) const;

  std::vector<Small> small_;
  std::vector<Large> large_;
};

} // namespace pentatron::data::tokenizer
