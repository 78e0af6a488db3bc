/// What the readers and writers of tokenizer.json's components share.
#pragma once

#include <string>

#include "pentatron/base/json.h"

namespace pentatron::data::tokenizer {

/// Sequences of normalizers, pre-tokenizers and decoders may be nested this deep.
inline constexpr int kMaxComponentDepth = 8;

/// U+2581, which SentencePiece writes for a space.
inline constexpr const char* kSpaceMark = "\u2581";

/// null if the object has no such member.
inline const Json& member(const Json& json, const char* key) {
  static const Json null;
  const auto found = json.find(key);
  return found == json.end() ? null : *found;
}

} // namespace pentatron::data::tokenizer
