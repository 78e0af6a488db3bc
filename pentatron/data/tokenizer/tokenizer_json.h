/// The parts of a tokenizer.json with a byte-level BPE, as Hugging Face's library writes them.
#pragma once

#include <cstdint>
#include <string>

#include "pentatron/base/json.h"

namespace pentatron::data::tokenizer {

/// The pre-tokenizer or decoder "ByteLevel"; `use_regex` cuts text into GPT-2's words.
Json byte_level_step(bool use_regex);

/// An entry of "added_tokens" that no text is normalized for.
Json special_token(int64_t id, const std::string& text);

/// The whole file, where bytes that nothing merges stay tokens of their own.
Json byte_level_bpe(Json added_tokens, Json pre_tokenizer, Json decoder, Json vocabulary,
                    Json merges);

} // namespace pentatron::data::tokenizer
