#include "pentatron/data/tokenizer/word_cache.h"

#include <algorithm>

#include "pentatron/data/tokenizer/vocabulary.h"

namespace pentatron::data::tokenizer {

WordCache::WordCache() : small_(kSmallSlots), large_(kLargeSlots) {}

void WordCache::insert(std::string_view word, const int32_t* tokens, size_t count) {
  if (count == 0) return;
  if (word.size() <= kSmallBytes && count <= kSmallTokens) {
    const Key key = load(word, word.data() + word.size());
    Small& slot = small_[hash(key) & (kSmallSlots - 1)];
    slot.key = key;
    std::fill(std::copy_n(tokens, count, slot.tokens), std::end(slot.tokens), -1);
  } else if (word.size() <= kMaxWordBytes && count <= kLargeTokens) {
    Large& slot = large_[hash_bytes(word) & (kLargeSlots - 1)];
    slot.size = static_cast<uint8_t>(word.size());
    slot.count = static_cast<uint8_t>(count);
    std::memcpy(slot.word, word.data(), word.size());
    std::copy_n(tokens, count, slot.tokens);
  }
}

bool WordCache::find_large(std::string_view word, std::vector<int32_t>& tokens) const {
  if (word.size() > kMaxWordBytes) return false;
  const Large& slot = large_[hash_bytes(word) & (kLargeSlots - 1)];
  if (slot.size != word.size() || std::memcmp(slot.word, word.data(), word.size()) != 0)
    return false;
  tokens.insert(tokens.end(), slot.tokens, slot.tokens + slot.count);
  return true;
}

} // namespace pentatron::data::tokenizer
