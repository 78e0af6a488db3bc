/// Rank files of tiktoken: a line a token, its bytes in base64 and its rank.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "pentatron/data/tokenizer.h"
#include "pentatron/data/tokenizer/hugging_face.h"

namespace pentatron::data::tokenizer {

/// What a rank file does not say.
struct TiktokenOptions {
  std::string name = "tiktoken";
  std::string pattern;                                  ///< how text is split into words
  std::vector<std::pair<std::string, int64_t>> special; ///< tokens that text never becomes
  EodChoice eod = {};
};

/// Tokens by rank.
using Ranks = std::vector<std::pair<std::string, int64_t>>;
/// Throws DataError, which names the line, for what is not a rank file.
Ranks read_tiktoken(std::string_view text);

/// The pattern and the special tokens that a well-known rank file is used with, by the name of the
/// file (cl100k_base.tiktoken, ...) or, if the name is unknown, by the number of tokens. `known` is
/// false if neither identifies the tokenizer: then they are those of cl100k_base, with one
/// <|endoftext|> behind the ranks.
struct TiktokenKind {
  TiktokenOptions options;
  bool known = false;
};
TiktokenKind find_tiktoken_kind(std::string_view file_name, const Ranks& ranks);
/// A pattern by name: gpt2, cl100k, llama3, qwen2, o200k. Else the text itself.
std::string tiktoken_pattern(const std::string& name_or_pattern);

/// The same ids as tiktoken's encode_ordinary(): special tokens in a text are ordinary text. Throws
/// DataError if a byte has no rank.
std::shared_ptr<const Tokenizer> make_tiktoken(const Ranks& ranks, const TiktokenOptions& options);

} // namespace pentatron::data::tokenizer
