#include "pentatron/data/tokenizer/trie.h"

#include <utility>

namespace pentatron::data::tokenizer {

void Trie::add(std::string_view text, int32_t value) {
  uint32_t node = kRoot;
  for (const char byte : text) {
    uint32_t child = step(node, byte);
    if (child == kNone) {
      if (values_.size() * 2 >= slots_.size()) grow();
      child = static_cast<uint32_t>(values_.size());
      values_.push_back(-1);
      size_t i = hash(key_of(node, byte)) & (slots_.size() - 1);
      while (slots_[i].key != kEmpty) i = (i + 1) & (slots_.size() - 1);
      slots_[i] = {key_of(node, byte), child};
    }
    node = child;
  }
  values_[node] = value;
}

void Trie::grow() {
  std::vector<Slot> old(slots_.size() * 2);
  std::swap(old, slots_);
  for (const Slot& slot : old) {
    if (slot.key == kEmpty) continue;
    size_t i = hash(slot.key) & (slots_.size() - 1);
    while (slots_[i].key != kEmpty) i = (i + 1) & (slots_.size() - 1);
    slots_[i] = slot;
  }
}

Trie::Found Trie::longest(std::string_view text) const {
  Found found;
  uint32_t node = kRoot;
  for (size_t i = 0; i < text.size(); ++i) {
    node = step(node, text[i]);
    if (node == kNone) break;
    if (values_[node] >= 0) found = {i + 1, values_[node]};
  }
  return found;
}

} // namespace pentatron::data::tokenizer
