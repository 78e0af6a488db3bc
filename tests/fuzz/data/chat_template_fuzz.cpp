// Any chat template is refused with a DataError or ends within its bounds.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "pentatron/base/json.h"
#include "pentatron/data/tokenizer/chat_template.h"
#include "pentatron/data/utf8.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace pentatron;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  if (size > 4096 || data::find_invalid_utf8(input) != std::string_view::npos) return 0;
  static const Json variables = {
      {"messages",
       {{{"role", "user"}, {"content", "Hi"}}, {{"role", "assistant"}, {"content", "yes"}}}},
      {"bos_token", "<s>"},
      {"add_generation_prompt", true}};
  try {
    const std::string text = data::tokenizer::ChatTemplate(input).render(variables);
    if (text.size() > (size_t{64} << 20)) __builtin_trap();
  } catch (const DataError&) {
  }
  return 0;
}
