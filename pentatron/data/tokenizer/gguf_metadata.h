/// A tokenizer's files as the metadata of a GGUF file, as llama.cpp's converter writes it:
/// tokenizer.json with a byte-level BPE, SentencePiece's BPE (tokenizer.model, or a tokenizer.json
/// that was made of one), or another GGUF file.
#pragma once

#include <cstdint>
#include <filesystem>

#include "pentatron/base/gguf.h"

namespace pentatron::data::tokenizer {

/// `path` is a file or the folder of a Hugging Face model, whose tokenizer_config.json and
/// config.json say which tokens are <s>, </s> and the like. There are `vocab_size` tokens: ids that
/// the tokenizer does not use become [PAD...]. Throws DataError for what llama.cpp has no
/// counterpart of, and if the tokenizer has more tokens.
GgufMetadata gguf_tokenizer_metadata(const std::filesystem::path& path, int64_t vocab_size);

} // namespace pentatron::data::tokenizer
