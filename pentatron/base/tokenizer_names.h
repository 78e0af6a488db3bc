/// Names of the files that make up the tokenizer of a folder.
#pragma once

#include <array>
#include <filesystem>
#include <optional>

namespace pentatron {

inline constexpr const char* kTokenizerJson = "tokenizer.json";
inline constexpr const char* kGpt2Vocabulary = "vocab.json"; ///< with kGpt2Merges beside it
inline constexpr const char* kGpt2Merges = "merges.txt";
inline constexpr std::array kSentencePieceNames = {"tokenizer.model", "spiece.model",
                                                   "sentencepiece.bpe.model"};
/// All of them, in the order in which a folder is searched.
inline constexpr std::array kTokenizerNames = {kTokenizerJson, kGpt2Vocabulary,
                                               kSentencePieceNames[0], kSentencePieceNames[1],
                                               kSentencePieceNames[2]};

/// Whether the folder contains the tokenizer file `name`, with what it needs beside it.
bool has_tokenizer_file(const std::filesystem::path& folder, const char* name);

/// The only .tiktoken (with `models`: or .model) in a folder, whatever its name.
std::optional<std::filesystem::path> only_tokenizer_file(const std::filesystem::path& folder,
                                                         bool models);

} // namespace pentatron
