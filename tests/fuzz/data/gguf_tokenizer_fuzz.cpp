// Any GGUF file holds a tokenizer or is a DataError; a tokenizer encodes and decodes any text.
#include <cstddef>
#include <cstdint>

#include "pentatron/base/error.h"
#include "pentatron/base/gguf.h"
#include "pentatron/base/log.h"
#include "pentatron/data/tokenizer/gguf_tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* input, size_t size) {
  using namespace pentatron;
  namespace tokenizer = data::tokenizer;
  log::set_level(log::Level::kSilent);
  std::shared_ptr<const data::Tokenizer> made;
  try {
    const ParsedGguf parsed = parse_gguf(std::as_bytes(std::span(input, size)), "input");
    const GgufKeys keys(parsed.metadata, "input");
    made = tokenizer::make_gguf_tokenizer(keys, "");
    tokenizer::gguf_chat_template(keys);
    tokenizer::gguf_named_token(keys, "unk_token");
  } catch (const DataError&) {
  }
  if (!made) return 0;
  std::vector<int32_t> ids;
  made->encode_with_special("ab <|end|>a\u2581b\n A<s>12", ids);
  for (const int32_t id : ids) {
    if (id < 0 || id >= made->vocab_size()) __builtin_trap();
  }
  made->decode(std::vector<int64_t>(ids.begin(), ids.end()));
  return 0;
}
