#include "pentatron/data/preprocess/open_tokenizer.h"

#include "pentatron/base/error.h"
#include "pentatron/base/naming.h"
#include "pentatron/data/tokenizer/open.h"

namespace pentatron::data {

std::shared_ptr<const Tokenizer> open_tokenizer(const std::string& name,
                                                const std::string& pattern) {
  if (name != kBytesTokenizer)
    return naming("--tokenizer ", name, [&] {
      return tokenizer::open_tokenizer(
          {.path = name, .pattern = pattern, .pattern_name = "--pattern "});
    });
  if (!pattern.empty())
    raise<ConfigError>("--pattern {} has no effect with --tokenizer bytes\n  try: remove --pattern",
                       pattern);
  return std::make_shared<ByteTokenizer>();
}

std::shared_ptr<const Tokenizer> open_decoder(const std::string& name) {
  if (name == kBytesTokenizer) return std::make_shared<ByteTokenizer>();
  return naming("--tokenizer ", name,
                [&] { return tokenizer::open_tokenizer({.path = name, .pattern_name = {}}); });
}

} // namespace pentatron::data
