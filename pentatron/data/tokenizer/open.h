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

/// Reads tokenizer.json, vocab.json with merges.txt in the same folder, SentencePiece's .model,
/// tiktoken's ranks or the tokenizer in a GGUF file. A folder is searched in this order. Throws
/// DataError, which names the file, for a missing, damaged or unsupported file, and ConfigError for
/// a pattern with a tokenizer that is not tiktoken's.
std::shared_ptr<const Tokenizer> open_tokenizer(const OpenOptions& options);

/// Returns the files that define the tokenizer at `path`: its main file and, for a vocab.json, the
/// merges. Throws the same errors as open_tokenizer().
std::vector<TokenizerFile> tokenizer_files(const OpenOptions& options);

/// Returns what programs keep beside these files and read again: tokenizer_config.json, the chat
/// template and others, as far as they are there.
std::vector<TokenizerFile> files_beside_tokenizer(const OpenOptions& options);

/// The chat template that lies with a tokenizer: chat_template.jinja, `chat_template` in
/// tokenizer_config.json, or that in a GGUF file. `path` is what open_tokenizer() takes.
std::optional<std::string> find_chat_template(const std::filesystem::path& path);

/// Returns the text of the token `name` (bos_token, eos_token, ...) from tokenizer_config.json next
/// to `path` or from a GGUF file; empty if it is not defined.
std::string configured_token(const std::filesystem::path& path, const std::string& name);

} // namespace pentatron::data::tokenizer
