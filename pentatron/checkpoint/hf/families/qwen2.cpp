/// Qwen2 and Qwen2.5: Llama with biases of q, k and v, and sliding windows in some layers.
/// Source: Yang et al. 2024 (arXiv:2407.10671).
#include "pentatron/checkpoint/hf/families/all.h"
#include "pentatron/checkpoint/hf/families/decoder.h"

namespace pentatron::checkpoint {

Family qwen2_family() {
  return {.model_type = "qwen2",
          .architecture = "Qwen2ForCausalLM",
          .read =
              [](const ConfigReader& in) {
                models::ModelConfig c = read_decoder(in, {.max_positions = 32768});
                c.add_qkv_bias = true;
                read_rope(in, {}, c);
                read_layer_windows(in, c);
                return c;
              },
          .write =
              [](const models::ModelConfig& c) {
                Json json = write_decoder(c);
                write_rope(c, {}, json);
                write_layer_windows(c, json);
                return json;
              },
          .names = name_llama};
}

} // namespace pentatron::checkpoint
