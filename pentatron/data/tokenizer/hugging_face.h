/// Hugging Face's tokenizer.json.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "pentatron/base/json.h"
#include "pentatron/data/tokenizer.h"

namespace pentatron::data::tokenizer {

/// Which token ends documents.
struct EodChoice {
  std::string required; ///< this one; DataError if the tokenizer does not have it
  std::string likely;   ///< else this one, if the tokenizer has it; else the first well-known one
};

struct HuggingFaceOptions {
  std::string name = "huggingface";
  EodChoice eod = {};
};

/// The tokenizer of a parsed tokenizer.json: the same ids and texts as Hugging Face's library,
/// except that truncation and padding are not applied. Throws DataError, which names the component,
/// for what is damaged or not supported.
std::shared_ptr<const Tokenizer> make_hugging_face(const Json& json,
                                                   const HuggingFaceOptions& options);

/// What GPT-2's vocab.json and merges.txt say, as tokenizer.json would.
Json gpt2_as_tokenizer_json(const Json& vocabulary, std::string_view merges);

/// A token for people to see: without control characters, never empty.
std::string printable_token(std::string_view text, int64_t id);

/// The id of the token that ends documents; -1 if the tokenizer has none.
int32_t find_eod(const Tokenizer& tokenizer, const EodChoice& choice);

} // namespace pentatron::data::tokenizer
