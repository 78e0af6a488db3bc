#include "pentatron/data/preprocess/open_tokenizer.h"

#include "pentatron/data/tokenizer/open.h"

namespace pentatron::data {

std::shared_ptr<const Tokenizer> open_tokenizer(const std::string& name) {
  if (name == "bytes") return std::make_shared<ByteTokenizer>();
  return tokenizer::open_tokenizer({.path = name});
}

} // namespace pentatron::data
