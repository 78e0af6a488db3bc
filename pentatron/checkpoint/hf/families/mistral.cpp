/// Mistral: Llama with a sliding window. Source: Jiang et al. 2023 (arXiv:2310.06825).
#include "pentatron/checkpoint/hf/families/all.h"
#include "pentatron/checkpoint/hf/families/decoder.h"

namespace pentatron::checkpoint {

Family mistral_family() {
  return {.model_type = "mistral",
          .architecture = [](const models::ModelConfig&) -> std::string {
            return "MistralForCausalLM";
          },
          .read =
              [](const ConfigReader& in) {
                models::ModelConfig c = read_decoder(in, {.kv_heads = 8, .max_positions = 131072});
                if (in.get<bool>("attention_bias", false))
                  in.refuse("attention_bias=true for mistral");
                read_rope(in, {}, c);
                c.window_size = read_window(in, 4096);
                return c;
              },
          .write =
              [](const models::ModelConfig& c) {
                Json json = write_decoder(c);
                json["sliding_window"] = c.window_size ? Json(*c.window_size) : Json();
                write_rope(c, {}, json);
                return json;
              },
          .names = name_llama,
          .padding_token = -1};
}

} // namespace pentatron::checkpoint
