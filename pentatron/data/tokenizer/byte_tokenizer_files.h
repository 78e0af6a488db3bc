/// The byte tokenizer in files that other programs read.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace pentatron::data::tokenizer {

/// Special tokens above those of ByteTokenizer.
struct ByteTokenizerExtras {
  std::vector<std::string> names;      ///< of the ids behind the last
  std::vector<int32_t> before, behind; ///< what is put around a text
};

/// tokenizer.json and tokenizer_config.json, by name, with the ids of ByteTokenizer: a byte-level
/// BPE without merges, and <|endoftext|> as the token behind a document. Hugging Face's
/// AutoTokenizer loads them.
std::map<std::string, std::string> byte_tokenizer_files(const ByteTokenizerExtras& added = {});

/// Returns the tokenizer_config.json for a tokenizer.json whose documents end with `eos`.
std::string tokenizer_config_json(const std::string& eos);

} // namespace pentatron::data::tokenizer
