#include "pentatron/checkpoint/gguf/families/family.h"

#include <algorithm>
#include <array>

#include "pentatron/checkpoint/gguf/families/all.h"

namespace pentatron::checkpoint {

std::span<const GgufFamily> gguf_families() {
  static const std::array all = {llama_gguf(), mistral_gguf(), qwen2_gguf(),       qwen3_gguf(),
                                 olmo2_gguf(), phi3_gguf(),    gemma2_gguf(),      gemma3_gguf(),
                                 glm4_gguf(),  mixtral_gguf(), qwen2_moe_gguf(),   qwen3_moe_gguf(),
                                 olmoe_gguf(), gpt_oss_gguf(), deepseek_v3_gguf(), gpt2_gguf()};
  return all;
}

const GgufFamily* find_gguf_family(std::string_view GgufFamily::*name, std::string_view value) {
  const auto found = std::ranges::find(gguf_families(), value, name);
  return found == gguf_families().end() ? nullptr : &*found;
}

std::string gguf_family_list() {
  std::string text;
  for (const GgufFamily& family : gguf_families()) {
    if (!text.empty()) text += &family == &gguf_families().back() ? " and " : ", ";
    text += family.model_type;
  }
  return text;
}

} // namespace pentatron::checkpoint
