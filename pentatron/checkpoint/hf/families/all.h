/// The architectures, one file each.
#pragma once

#include "pentatron/checkpoint/hf/families/family.h"

namespace pentatron::checkpoint {

Family bert_family();
Family deepseek_v3_family();
Family gpt2_family();
Family gpt_oss_family();
Family gemma2_family();
Family gemma3_family();
Family glm4_family();
Family llama_family();
Family mistral_family();
Family mixtral_family();
Family olmo2_family();
Family olmoe_family();
Family phi3_family();
Family qwen2_family();
Family qwen2_moe_family();
Family qwen3_family();
Family qwen3_moe_family();
Family roberta_family();
Family t5_family();

} // namespace pentatron::checkpoint
