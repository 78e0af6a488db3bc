/// Every family; each has a file.
#pragma once

#include "pentatron/checkpoint/gguf/families/family.h"

namespace pentatron::checkpoint {

GgufFamily llama_gguf();
GgufFamily mistral_gguf();
GgufFamily qwen2_gguf();
GgufFamily qwen3_gguf();
GgufFamily olmo2_gguf();
GgufFamily phi3_gguf();
GgufFamily gemma2_gguf();
GgufFamily gemma3_gguf();
GgufFamily glm4_gguf();
GgufFamily gpt2_gguf();
GgufFamily gpt_oss_gguf();
GgufFamily mixtral_gguf();
GgufFamily olmoe_gguf();
GgufFamily qwen2_moe_gguf();
GgufFamily qwen3_moe_gguf();
GgufFamily deepseek_v3_gguf();

} // namespace pentatron::checkpoint
