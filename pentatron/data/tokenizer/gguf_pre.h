/// tokenizer.ggml.pre: the name under which llama.cpp knows how a byte-level tokenizer cuts text
/// into words.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "pentatron/base/json.h"

namespace pentatron::data::tokenizer {

struct GgufPre {
  std::vector<std::string> patterns; ///< each isolates its matches in the pieces so far
  bool ignore_merges = false;        ///< a word that is a token is that token
  bool add_bos = false;              ///< where the file does not say
  /// The tokenizers of this name normalize to NFC. llama.cpp does not; the models were trained so.
  bool nfc = false;
};

/// Throws DataError for a name that is not known.
GgufPre gguf_pre(std::string_view name);

/// "pre_tokenizer" of tokenizer.json for it.
Json gguf_pre_tokenizer(const GgufPre& pre);

/// The name for a parsed tokenizer.json with a byte-level BPE. Throws DataError if llama.cpp has
/// none.
std::string find_gguf_pre(const Json& tokenizer_json);

} // namespace pentatron::data::tokenizer
