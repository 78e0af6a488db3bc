#include "pentatron/generate/text_writer.h"

namespace pentatron::generate {

std::vector<int64_t> prompt_tokens(const data::Tokenizer& tokenizer, const std::string& text,
                                   const std::string& bos) {
  std::vector<int32_t> encoded;
  tokenizer.encode_with_special(text, encoded);
  std::vector<int64_t> tokens(encoded.begin(), encoded.end());
  // A tokenizer without files knows the end of a document only, behind which a text begins.
  const bool bytes = dynamic_cast<const data::ByteTokenizer*>(&tokenizer) != nullptr;
  if (const auto begin = tokenizer.token_id(bos); tokens.empty() && !bos.empty() && begin)
    return {*begin};
  if ((bytes || tokens.empty()) && tokenizer.eod() >= 0)
    tokens.insert(tokens.begin(), tokenizer.eod());
  return tokens;
}

TextWriter::TextWriter(const data::Tokenizer& tokenizer, const std::vector<int64_t>& prompt,
                       const std::vector<std::string>& stops)
    : decoder_(tokenizer), stops_(stops) {
  for (const int64_t token : prompt) decoder_.push(token);
}

std::string TextWriter::push(int64_t token) {
  std::string shown = stops_.push(decoder_.push(token));
  text_ += shown;
  return shown;
}

std::string TextWriter::finish() {
  std::string shown = stops_.push(decoder_.finish());
  shown += stops_.finish();
  text_ += shown;
  return shown;
}

} // namespace pentatron::generate
