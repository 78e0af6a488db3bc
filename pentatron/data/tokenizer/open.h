/// A tokenizer from the files that a user has.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "pentatron/data/tokenizer.h"

namespace pentatron::data::tokenizer {

enum class FileType : uint8_t { kAuto, kHuggingFace, kSentencePiece, kTiktoken, kGpt2 };

struct OpenOptions {
  /// A file, a folder that holds the files, a checkpoint of pentatron or the folder of its
  /// checkpoints, or ORG/NAME of a model in the Hugging Face cache.
  std::filesystem::path path;
  FileType type = FileType::kAuto;
  std::string eod_token; ///< empty: eos_token of tokenizer_config.json, or a well-known one
  std::string pattern;   ///< for tiktoken: a name (cl100k, ...) or a regular expression
  /// Of its key or option, for messages; empty: text is decoded only, so that no pattern matters.
  std::string_view pattern_name = "tokenizer.pattern=";
};

/// Reads tokenizer.json, vocab.json with merges.txt beside it, SentencePiece's .model, tiktoken's
/// ranks or the tokenizer in a GGUF file; which of them a folder holds is found in this order.
/// Throws DataError, which names the file, for what is missing, damaged or not supported, and
/// ConfigError for a pattern of a tokenizer that is not tiktoken's.
std::shared_ptr<const Tokenizer> open_tokenizer(const OpenOptions& options);

/// The files that make the tokenizer at `path` what it is: the one that names it, and the merges
/// beside a vocab.json. Throws what open_tokenizer() does.
std::vector<TokenizerFile> tokenizer_files(const OpenOptions& options);

/// The chat template that lies with a tokenizer: chat_template.jinja, `chat_template` in
/// tokenizer_config.json, or that in a GGUF file. `path` is what open_tokenizer() takes.
std::optional<std::string> find_chat_template(const std::filesystem::path& path);

/// The text of the token `name` (bos_token, eos_token, ...) in tokenizer_config.json beside `path`
/// or in a GGUF file; empty if there is none.
std::string configured_token(const std::filesystem::path& path, const std::string& name);

} // namespace pentatron::data::tokenizer
