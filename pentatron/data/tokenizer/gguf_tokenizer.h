/// The tokenizer inside a GGUF file: tokenizer.ggml.model `gpt2` (byte-level BPE, whose words
/// tokenizer.ggml.pre names) and `llama` (SentencePiece's BPE: merges by score, byte tokens).
///
/// It becomes what its tokenizer.json would be, with the rules of llama.cpp where the file says
/// less: control tokens are special, user-defined ones are found in the text, a space is put before
/// the text of a SentencePiece model and behind each special token.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "pentatron/base/gguf.h"
#include "pentatron/base/json.h"
#include "pentatron/data/tokenizer.h"
#include "pentatron/data/tokenizer/hugging_face.h"

namespace pentatron::data::tokenizer {

/// Throws DataError, which names the key, for what is damaged or not supported.
std::shared_ptr<const Tokenizer> make_gguf_tokenizer(const GgufKeys& metadata,
                                                     const std::string& eod_token);

/// What tokenizer.json would say.
Json gguf_as_tokenizer_json(const GgufKeys& metadata);

/// The tokenizer as files of a Hugging Face folder: tokenizer.json, and tokenizer_config.json with
/// the named tokens and the chat template.
std::map<std::string, std::string> gguf_tokenizer_files(const GgufKeys& metadata);

std::optional<std::string> gguf_chat_template(const GgufKeys& metadata);

/// The text of "bos_token", "eos_token", "unk_token" or "pad_token"; empty if the file does not
/// define it.
std::string gguf_named_token(const GgufKeys& metadata, const std::string& name);

} // namespace pentatron::data::tokenizer
