#include "pentatron/data/preprocess/open_tokenizer.h"

#include "pentatron/base/error.h"
#include "pentatron/data/dataset.h"

namespace pentatron::data {

std::shared_ptr<const Tokenizer> open_tokenizer(const std::string& name) {
  if (name == "bytes") return std::make_shared<ByteTokenizer>();
  raise<ConfigError>("--tokenizer {} is not a tokenizer\n  try: --tokenizer bytes", name);
}

} // namespace pentatron::data
