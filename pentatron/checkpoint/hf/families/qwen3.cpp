/// Qwen3: Qwen2 with norms of every head's q and k. Source: Yang et al. 2025 (arXiv:2505.09388).
#include "pentatron/checkpoint/hf/families/all.h"
#include "pentatron/checkpoint/hf/families/decoder.h"

namespace pentatron::checkpoint {

Family qwen3_family() {
  return {.model_type = "qwen3",
          .architecture = "Qwen3ForCausalLM",
          .read =
              [](const ConfigReader& in) {
                models::ModelConfig c = read_decoder(in, {.max_positions = 32768});
                if (!c.kv_channels) c.kv_channels = 128;
                c.add_qkv_bias = c.add_attention_proj_bias = in.get<bool>("attention_bias", false);
                c.qk_layernorm = true;
                read_rope(in, {}, c);
                read_layer_windows(in, c);
                return c;
              },
          .write =
              [](const models::ModelConfig& c) {
                Json json = write_decoder(c);
                json["attention_bias"] = c.add_qkv_bias && c.add_attention_proj_bias;
                write_rope(c, {}, json);
                write_layer_windows(c, json);
                return json;
              },
          .names = name_llama};
}

} // namespace pentatron::checkpoint
