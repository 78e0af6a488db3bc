// Any tokenizer.json is refused with a DataError or makes a tokenizer whose ids are in range and
// whose texts are UTF-8.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "pentatron/base/json.h"
#include "pentatron/data/tokenizer/hugging_face.h"
#include "pentatron/data/utf8.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace pentatron;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  try {
    const Json json = parse_json(input, "it", {.max_bytes = 1 << 16});
    const auto tokenizer = data::tokenizer::make_hugging_face(json, {});
    for (const char* text :
         {"", "Hello  world 12\n", "\xC3\xA9 \xE2\x96\x81<s>e\xCC\x81\xE4\xB8\xAD"}) {
      std::vector<int32_t> ids;
      try {
        tokenizer->encode_with_special(text, ids);
      } catch (const DataError&) { // a character that nothing stands for
      }
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
