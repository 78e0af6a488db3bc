// Any SentencePiece model is refused with a DataError or makes a tokenizer whose ids are in range
// and whose texts are UTF-8.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "pentatron/base/error.h"
#include "pentatron/data/tokenizer/sentencepiece.h"
#include "pentatron/data/utf8.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace pentatron;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  try {
    const auto tokenizer =
        data::tokenizer::make_sentencepiece(data::tokenizer::read_sentencepiece(input), {});
    for (const char* text : {"", " Hello  world 12\n", "\xC3\xA9 \xE2\x96\x81<s>\xEF\xBC\xA1"}) {
      std::vector<int32_t> ids;
      tokenizer->encode_with_special(text, ids);
      std::vector<int64_t> wide;
      for (const int32_t id : ids) {
        if (id < 0 || id >= tokenizer->vocab_size()) __builtin_trap();
        wide.push_back(id);
      }
      const std::string decoded = tokenizer->decode_with_special(wide);
      if (data::find_invalid_utf8(decoded) != std::string_view::npos) __builtin_trap();
    }
  } catch (const DataError&) {
  }
  return 0;
}
