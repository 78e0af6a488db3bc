/// GPT-2. Source: Radford et al. 2019.
#include "pentatron/checkpoint/hf/families/all.h"

namespace pentatron::checkpoint {

namespace {

models::ModelConfig read_gpt2(const ConfigReader& in) {
  models::ModelConfig c;
  c.num_layers = in.get<int64_t>("n_layer", 12);
  c.hidden_size = in.get<int64_t>("n_embd", 768);
  c.num_attention_heads = in.get<int64_t>("n_head", 12);
  c.ffn_hidden_size = in.get<int64_t>("n_inner", 4 * c.hidden_size);
  c.vocab_size = in.get<int64_t>("vocab_size", 50257);
  c.max_position_embeddings = in.get<int64_t>("n_positions", 1024);
  c.position_embedding_type = models::PositionEmbedding::kLearnedAbsolute;
  c.normalization = models::Normalization::kLayerNorm;
  c.layernorm_epsilon = in.get<double>("layer_norm_epsilon", 1e-5);
  c.activation_func = read_activation(in, "activation_function", "gelu_new", false);
  c.add_qkv_bias = c.add_attention_proj_bias = c.add_mlp_bias = true;
  c.attention_dropout = in.get<double>("attn_pdrop", 0.1);
  c.hidden_dropout = in.get<double>("resid_pdrop", 0.1);
  c.embedding_dropout = in.get<double>("embd_pdrop", 0.1);
  c.untie_embeddings_and_output_weights = !in.get<bool>("tie_word_embeddings", true);
  if (!in.get<bool>("scale_attn_weights", true)) c.softmax_scale = 1.0;
  c.scale_attn_by_inverse_layer_idx = in.get<bool>("scale_attn_by_inverse_layer_idx", false);
  if (in.get<bool>("add_cross_attention", false)) in.refuse("add_cross_attention=true");
  return c;
}

Json write_gpt2(const models::ModelConfig& c) {
  const bool unscaled = c.softmax_scale == 1.0;
  return {{"n_layer", c.num_layers},
          {"n_embd", c.hidden_size},
          {"n_head", c.num_attention_heads},
          {"n_inner", c.ffn_size()},
          {"n_positions", c.max_position_embeddings},
          {"vocab_size", c.vocab_size},
          {"layer_norm_epsilon", c.layernorm_epsilon},
          {"activation_function", activation_name(c.activation_func)},
          {"attn_pdrop", c.attention_dropout},
          {"resid_pdrop", c.hidden_dropout},
          {"embd_pdrop", c.embedding_dropout.value_or(c.hidden_dropout)},
          {"scale_attn_weights", !unscaled},
          {"scale_attn_by_inverse_layer_idx", c.scale_attn_by_inverse_layer_idx},
          {"initializer_range", c.init_method_std},
          {"tie_word_embeddings", !c.untie_embeddings_and_output_weights}};
}

void name_gpt2(const models::ModelConfig& c, TensorNames& out) {
  out.add("transformer.wte.weight", "embedding.word.weight");
  out.add("transformer.wpe.weight", "embedding.position.weight");
  for (int64_t i = 0; i < c.num_layers; ++i) {
    const std::string hf = fmt::format("transformer.h.{}.", i), own = fmt::format("layers.{}.", i);
    const auto conv = [&](const char* theirs, const char* ours) { // Conv1D is transposed
      out.add(hf + theirs + ".weight", own + ours + ".weight", "", true);
      out.add(hf + theirs + ".bias", own + ours + ".bias");
    };
    out.add_module(hf + "ln_1", own + "attention_norm", true);
    conv("attn.c_attn", "attention.qkv");
    conv("attn.c_proj", "attention.proj");
    out.add_module(hf + "ln_2", own + "mlp_norm", true);
    conv("mlp.c_fc", "mlp.fc1");
    conv("mlp.c_proj", "mlp.fc2");
  }
  out.add_module("transformer.ln_f", "final_norm", true);
  if (c.untie_embeddings_and_output_weights) out.add("lm_head.weight", "output.weight");
}

} // namespace

Family gpt2_family() {
  return {
      .model_type = "gpt2",
      .architecture = [](const models::ModelConfig&) -> std::string { return "GPT2LMHeadModel"; },
      .read = read_gpt2,
      .write = write_gpt2,
      .names = name_gpt2,
      .base_prefix = "transformer.",
      .aliases = {{"hidden_size", "n_embd"},
                  {"max_position_embeddings", "n_positions"},
                  {"num_attention_heads", "n_head"},
                  {"num_hidden_layers", "n_layer"}}};
}

} // namespace pentatron::checkpoint
