/// Llama. Source: Touvron et al. 2023 (arXiv:2302.13971).
#include "pentatron/checkpoint/hf/families/all.h"
#include "pentatron/checkpoint/hf/families/decoder.h"

namespace pentatron::checkpoint {

Family llama_family() {
  return {
      .model_type = "llama",
      .architecture = [](const models::ModelConfig&) -> std::string { return "LlamaForCausalLM"; },
      .read =
          [](const ConfigReader& in) {
            models::ModelConfig c = read_decoder(in);
            c.add_qkv_bias = c.add_attention_proj_bias = in.get<bool>("attention_bias", false);
            c.add_mlp_bias = in.get<bool>("mlp_bias", false);
            read_rope(in, {}, c);
            return c;
          },
      .write =
          [](const models::ModelConfig& c) {
            Json json = write_decoder(c);
            json["attention_bias"] = c.add_qkv_bias && c.add_attention_proj_bias;
            json["mlp_bias"] = c.add_mlp_bias;
            write_rope(c, {}, json);
            return json;
          },
      .names = name_llama,
      .padding_token = -1,
      .obstacle = uneven_heads};
}

} // namespace pentatron::checkpoint
