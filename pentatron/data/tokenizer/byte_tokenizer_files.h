/// The byte tokenizer in files that other programs read.
#pragma once

#include <map>
#include <string>

namespace pentatron::data::tokenizer {

/// tokenizer.json and tokenizer_config.json, by name, with the ids of ByteTokenizer: a byte-level
/// BPE without merges, and <|endoftext|> as the token behind a document. Hugging Face's
/// AutoTokenizer loads them.
std::map<std::string, std::string> byte_tokenizer_files();

/// tokenizer_config.json beside a tokenizer.json whose documents end with `eos`.
std::string tokenizer_config_json(const std::string& eos);

} // namespace pentatron::data::tokenizer
