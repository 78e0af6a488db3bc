#include "pentatron/models/presets.h"

#include <cmath>

#include "pentatron/base/error.h"
#include "pentatron/base/nearest.h"

namespace pentatron::models {

namespace {

/// GPT-2 (Radford et al. 2019) and GPT-3 (Brown et al. 2020, arXiv:2005.14165): learned positions,
/// LayerNorm, biases everywhere, tied.
ModelConfig gpt(int64_t layers, int64_t hidden, int64_t heads, int64_t vocab, int64_t positions) {
  return {.num_layers = layers,
          .hidden_size = hidden,
          .num_attention_heads = heads,
          .vocab_size = vocab,
          .max_position_embeddings = positions,
          .position_embedding_type = PositionEmbedding::kLearnedAbsolute,
          .normalization = Normalization::kLayerNorm,
          .activation_func = ActivationFunction::kGeluTanh,
          .add_qkv_bias = true,
          .add_attention_proj_bias = true,
          .add_mlp_bias = true};
}

ModelConfig gpt2(int64_t layers, int64_t hidden, int64_t heads) {
  return gpt(layers, hidden, heads, 50257, 1024);
}

/// The weak-scaling models of Narayanan et al. 2021 (arXiv:2104.04473, table 1): vocabulary 51,200,
/// sequence 2048.
ModelConfig gpt3(int64_t layers, int64_t hidden, int64_t heads) {
  return gpt(layers, hidden, heads, 51200, 2048);
}

/// Llama (Touvron et al. 2023, arXiv:2302.13971 and arXiv:2307.09288; Grattafiori et al. 2024,
/// arXiv:2407.21783).
ModelConfig llama(int64_t layers, int64_t hidden, int64_t heads, int64_t groups, int64_t ffn,
                  int64_t vocab, int64_t positions, double theta) {
  return {.num_layers = layers,
          .hidden_size = hidden,
          .num_attention_heads = heads,
          .num_query_groups = groups,
          .ffn_hidden_size = ffn,
          .vocab_size = vocab,
          .max_position_embeddings = positions,
          .rotary_base = theta,
          .layernorm_epsilon = 1e-5,
          .untie_embeddings_and_output_weights = true};
}

ModelConfig llama31(ModelConfig c, double factor) {
  c.max_position_embeddings = 131072;
  c.rope_scaling = {
      .type = RopeScalingType::kLlama3, .factor = factor, .original_max_position_embeddings = 8192};
  return c;
}

ModelConfig tied(ModelConfig c) {
  c.untie_embeddings_and_output_weights = false;
  return c;
}

/// Mistral 7B (Jiang et al. 2023, arXiv:2310.06825), version 0.1 with its sliding window.
ModelConfig mistral() {
  ModelConfig c = llama(32, 4096, 32, 8, 14336, 32000, 32768, 10000.0);
  c.window_size = 4096;
  return c;
}

/// Qwen 2.5 (arXiv:2412.15115): biases on q, k, v. Qwen 3 (arXiv:2505.09388): q/k norms, head size
/// 128, no biases.
ModelConfig qwen25(int64_t layers, int64_t hidden, int64_t heads, int64_t groups, int64_t ffn,
                   int64_t vocab, int64_t positions, bool untied, double eps = 1e-6) {
  ModelConfig c = llama(layers, hidden, heads, groups, ffn, vocab, positions, 1e6);
  c.layernorm_epsilon = eps;
  c.add_qkv_bias = true;
  c.untie_embeddings_and_output_weights = untied;
  return c;
}

ModelConfig qwen3(int64_t layers, int64_t hidden, int64_t heads, int64_t groups, int64_t ffn,
                  bool untied) {
  ModelConfig c = llama(layers, hidden, heads, groups, ffn, 151936, 40960, 1e6);
  c.layernorm_epsilon = 1e-6;
  c.kv_channels = 128;
  c.qk_layernorm = true;
  c.untie_embeddings_and_output_weights = untied;
  return c;
}

/// Phi-3 mini (Abdin et al. 2024, arXiv:2404.14219), with 4K tokens and its sliding window.
ModelConfig phi3_mini() {
  ModelConfig c = llama(32, 3072, 32, 32, 8192, 32064, 4096, 10000.0);
  c.window_size = 2047;
  return c;
}

/// OLMo 2 (arXiv:2501.00656).
ModelConfig olmo2(int64_t layers, int64_t hidden, int64_t heads, int64_t ffn) {
  ModelConfig c = llama(layers, hidden, heads, heads, ffn, 100352, 4096, 500000.0);
  c.layernorm_epsilon = 1e-6;
  c.norm_placement = NormPlacement::kOutput;
  c.qk_layernorm = true;
  c.qk_layernorm_scope = QkNormScope::kProjection;
  return c;
}

/// GLM-4 9B (arXiv:2406.12793), version 0414.
ModelConfig glm4() {
  ModelConfig c = llama(40, 4096, 32, 2, 13696, 151552, 32768, 10000.0);
  c.add_qkv_bias = true;
  c.norm_placement = NormPlacement::kPreAndOutput;
  c.rotary_percent = 0.5;
  c.rotary_interleaved = true;
  return c;
}

/// Gemma 2 2B (arXiv:2408.00118) and Gemma 3 1B (arXiv:2503.19786): every `full_every`-th layer
/// sees more than its window.
ModelConfig gemma(ModelConfig c, int64_t window, int64_t full_every) {
  c.kv_channels = 256;
  c.layernorm_epsilon = 1e-6;
  c.layernorm_zero_centered_gamma = true;
  c.norm_placement = NormPlacement::kPreAndOutput;
  c.activation_func = ActivationFunction::kGeGluTanh;
  c.softmax_scale = 1.0 / 16;
  c.embedding_multiplier = std::sqrt(static_cast<double>(c.hidden_size));
  c.window_size = window;
  for (int64_t i = full_every - 1; i < c.num_layers; i += full_every)
    c.full_attention_layers.push_back(i);
  return tied(c);
}

ModelConfig gemma2() {
  ModelConfig c = gemma(llama(26, 2304, 8, 4, 9216, 256000, 8192, 10000.0), 4096, 2);
  c.attn_logit_softcapping = 50;
  c.final_logit_softcapping = 30;
  return c;
}

ModelConfig gemma3() {
  ModelConfig c = gemma(llama(26, 1152, 4, 1, 6912, 262144, 32768, 1e6), 512, 6);
  c.qk_layernorm = true;
  c.rope_local_base_freq = 10000.0;
  return c;
}

/// Layers that all have experts of `ffn`, `top_k` for each token.
ModelConfig with_experts(ModelConfig c, int64_t experts, int64_t top_k, int64_t ffn) {
  c.num_moe_experts = experts;
  c.moe_router_topk = top_k;
  c.moe_ffn_hidden_size = ffn;
  return c;
}

/// Mixtral (Jiang et al. 2024, arXiv:2401.04088), version 0.1.
ModelConfig mixtral(int64_t layers, int64_t hidden, int64_t heads, int64_t ffn, int64_t positions) {
  return with_experts(llama(layers, hidden, heads, 8, ffn, 32000, positions, 1e6), 8, 2, ffn);
}

/// Qwen 1.5 MoE (arXiv:2407.10671): shared experts with a gate; the softmax is of all experts.
ModelConfig qwen15_moe() {
  ModelConfig c = qwen25(24, 2048, 16, 16, 5632, 151936, 8192, true);
  c = with_experts(std::move(c), 60, 4, 1408);
  c.moe_router_pre_softmax = true;
  c.moe_shared_expert_intermediate_size = 5632;
  c.moe_shared_expert_gate = true;
  return c;
}

ModelConfig qwen3_moe(int64_t layers, int64_t hidden, int64_t heads, int64_t ffn,
                      int64_t expert_ffn) {
  return with_experts(qwen3(layers, hidden, heads, 4, ffn, true), 128, 8, expert_ffn);
}

/// OLMoE (Muennighoff et al. 2024, arXiv:2409.02060).
ModelConfig olmoe() {
  ModelConfig c = llama(16, 2048, 16, 16, 1024, 50304, 4096, 10000.0);
  c = with_experts(std::move(c), 64, 8, 1024);
  c.moe_router_pre_softmax = true;
  c.qk_layernorm = true;
  c.qk_layernorm_scope = QkNormScope::kProjection;
  c.padding_token = 1;
  return c;
}

/// GPT-OSS (OpenAI 2025, arXiv:2508.10925).
ModelConfig gpt_oss(int64_t layers, int64_t experts) {
  ModelConfig c = llama(layers, 2880, 64, 8, 2880, 201088, 131072, 150000.0);
  c = with_experts(std::move(c), experts, 4, 2880);
  c.kv_channels = 64;
  c.rope_scaling = {.type = RopeScalingType::kYarn,
                    .factor = 32,
                    .original_max_position_embeddings = 4096,
                    .truncate = false};
  c.activation_func = ActivationFunction::kQuickGeGlu;
  c.activation_func_clamp_value = 7;
  c.glu_linear_offset = 1;
  c.add_qkv_bias = c.add_attention_proj_bias = c.add_mlp_bias = c.moe_router_logit_bias = true;
  c.softmax_type = SoftmaxType::kLearnable;
  c.window_size = 128;
  for (int64_t i = 1; i < layers; i += 2) c.full_attention_layers.push_back(i);
  return c;
}

/// BERT (Devlin et al. 2019, arXiv:1810.04805), uncased, with both heads of its pre-training.
ModelConfig bert(int64_t layers, int64_t hidden, int64_t heads) {
  ModelConfig c = ModelConfig::default_of(ModelType::kBert);
  c.num_layers = layers;
  c.hidden_size = hidden;
  c.num_attention_heads = heads;
  c.vocab_size = 30522;
  c.max_position_embeddings = 512;
  c.padding_token = 0;
  return c;
}

/// RoBERTa (Liu et al. 2019, arXiv:1907.11692), with the head of masked tokens.
ModelConfig roberta(int64_t layers, int64_t hidden, int64_t heads) {
  ModelConfig c = bert(layers, hidden, heads);
  c.vocab_size = 50265;
  c.max_position_embeddings = 514;
  c.position_offset = 2;
  c.padding_token = 1;
  c.num_tokentypes = 1;
  c.layernorm_epsilon = 1e-5;
  c.binary_head = false;
  return c;
}

/// T5 (Raffel et al. 2020, arXiv:1910.10683).
ModelConfig t5(int64_t layers, int64_t hidden, int64_t heads, int64_t ffn) {
  ModelConfig c = ModelConfig::default_of(ModelType::kT5);
  c.num_layers = layers;
  c.hidden_size = hidden;
  c.num_attention_heads = heads;
  c.kv_channels = 64;
  c.ffn_hidden_size = ffn;
  c.vocab_size = 32128;
  c.activation_func = ActivationFunction::kRelu;
  return c;
}

/// T5 1.1 and Flan-T5 (Chung et al. 2022, arXiv:2210.11416): gated, with an output layer of its
/// own.
ModelConfig t5_v1_1(int64_t layers, int64_t hidden, int64_t heads, int64_t ffn) {
  ModelConfig c = t5(layers, hidden, heads, ffn);
  c.activation_func = ActivationFunction::kGeGluTanh;
  c.untie_embeddings_and_output_weights = true;
  c.scale_decoder_outputs = false;
  return c;
}

/// DeepSeek-V3 (arXiv:2412.19437), whose context of 128K tokens YaRN extends from 4K.
ModelConfig deepseek_v3() {
  ModelConfig c = llama(61, 7168, 128, 128, 18432, 129280, 163840, 10000.0);
  c.layernorm_epsilon = 1e-6;
  c.rotary_interleaved = true;
  c.rope_scaling = {.type = RopeScalingType::kYarn,
                    .factor = 40,
                    .original_max_position_embeddings = 4096,
                    .attention_factor = {},
                    .mscale = 1.0,
                    .mscale_all_dim = 1.0};
  c.multi_latent_attention = true;
  c.q_lora_rank = 1536;
  c.num_moe_experts = 256;
  c.moe_layer_freq = "[0]*3+[1]*58";
  c.moe_ffn_hidden_size = c.moe_shared_expert_intermediate_size = 2048;
  c.moe_router_topk = 8;
  c.moe_router_score_function = RouterScoreFunction::kSigmoid;
  c.moe_router_topk_scaling_factor = 2.5;
  c.moe_router_num_groups = 8;
  c.moe_router_group_topk = 4;
  c.moe_router_group_score_topk = 2;
  c.moe_router_enable_expert_bias = true;
  return c;
}

/// Moonlight 16B (arXiv:2502.16982): queries without a latent, no groups of experts.
ModelConfig moonlight() {
  ModelConfig c = llama(27, 2048, 16, 16, 11264, 163840, 8192, 50000.0);
  c.rotary_interleaved = true;
  c.multi_latent_attention = true;
  c.latent_layernorm_epsilon = 1e-6;
  c.num_moe_experts = 64;
  c.moe_layer_freq = "[0]+[1]*26";
  c.moe_ffn_hidden_size = 1408;
  c.moe_shared_expert_intermediate_size = 2816;
  c.moe_router_topk = 6;
  c.moe_router_score_function = RouterScoreFunction::kSigmoid;
  c.moe_router_topk_scaling_factor = 2.446;
  c.moe_router_enable_expert_bias = true;
  return c;
}

struct Named {
  const char* name;
  ModelConfig config;
};

const std::vector<Named>& table() {
  static const std::vector<Named> models = {
      {"gpt2_124m", gpt2(12, 768, 12)},
      {"gpt2_355m", gpt2(24, 1024, 16)},
      {"gpt2_774m", gpt2(36, 1280, 20)},
      {"gpt2_1.5b", gpt2(48, 1600, 25)},
      {"gpt3_1.7b", gpt3(24, 2304, 24)},
      {"gpt3_3.6b", gpt3(30, 3072, 32)},
      {"gpt3_7.5b", gpt3(36, 4096, 32)},
      {"gpt3_18b", gpt3(40, 6144, 48)},
      {"gpt3_39b", gpt3(48, 8192, 64)},
      {"gpt3_76b", gpt3(60, 10240, 80)},
      {"gpt3_145b", gpt3(80, 12288, 96)},
      {"gpt3_175b", gpt3(96, 12288, 96)},
      {"gpt3_310b", gpt3(96, 16384, 128)},
      {"gpt3_530b", gpt3(105, 20480, 128)},
      {"gpt3_1t", gpt3(128, 25600, 160)},
      {"llama1_7b", llama(32, 4096, 32, 32, 11008, 32000, 2048, 10000.0)},
      {"llama2_7b", llama(32, 4096, 32, 32, 11008, 32000, 4096, 10000.0)},
      {"llama2_13b", llama(40, 5120, 40, 40, 13824, 32000, 4096, 10000.0)},
      {"llama2_70b", llama(80, 8192, 64, 8, 28672, 32000, 4096, 10000.0)},
      {"llama3_8b", llama(32, 4096, 32, 8, 14336, 128256, 8192, 500000.0)},
      {"llama3_70b", llama(80, 8192, 64, 8, 28672, 128256, 8192, 500000.0)},
      {"llama3.1_8b", llama31(llama(32, 4096, 32, 8, 14336, 128256, 8192, 500000.0), 8)},
      {"llama3.1_70b", llama31(llama(80, 8192, 64, 8, 28672, 128256, 8192, 500000.0), 8)},
      {"llama3.1_405b", llama31(llama(126, 16384, 128, 8, 53248, 128256, 8192, 500000.0), 8)},
      {"llama3.2_1b", tied(llama31(llama(16, 2048, 32, 8, 8192, 128256, 8192, 500000.0), 32))},
      {"llama3.2_3b", tied(llama31(llama(28, 3072, 24, 8, 8192, 128256, 8192, 500000.0), 32))},
      {"mistral_7b", mistral()},
      {"qwen2.5_0.5b", qwen25(24, 896, 14, 2, 4864, 151936, 32768, false)},
      {"qwen2.5_1.5b", qwen25(28, 1536, 12, 2, 8960, 151936, 32768, false)},
      {"qwen2.5_3b", qwen25(36, 2048, 16, 2, 11008, 151936, 32768, false)},
      {"qwen2.5_7b", qwen25(28, 3584, 28, 4, 18944, 152064, 131072, true)},
      {"qwen2.5_14b", qwen25(48, 5120, 40, 8, 13824, 152064, 131072, true, 1e-5)},
      {"qwen2.5_32b", qwen25(64, 5120, 40, 8, 27648, 152064, 131072, true, 1e-5)},
      {"qwen2.5_72b", qwen25(80, 8192, 64, 8, 29568, 152064, 131072, true, 1e-5)},
      {"qwen3_0.6b", qwen3(28, 1024, 16, 8, 3072, false)},
      {"qwen3_1.7b", qwen3(28, 2048, 16, 8, 6144, false)},
      {"qwen3_4b", qwen3(36, 2560, 32, 8, 9728, false)},
      {"qwen3_8b", qwen3(36, 4096, 32, 8, 12288, true)},
      {"qwen3_14b", qwen3(40, 5120, 40, 8, 17408, true)},
      {"qwen3_32b", qwen3(64, 5120, 64, 8, 25600, true)},
      {"phi3_mini_4k", phi3_mini()},
      {"olmo2_1b", olmo2(16, 2048, 16, 8192)},
      {"olmo2_7b", olmo2(32, 4096, 32, 11008)},
      {"glm4_9b", glm4()},
      {"gemma2_2b", gemma2()},
      {"gemma3_1b", gemma3()},
      {"moonlight_16b", moonlight()},
      {"deepseek_v3", deepseek_v3()},
      {"mixtral_8x7b", mixtral(32, 4096, 32, 14336, 32768)},
      {"mixtral_8x22b", mixtral(56, 6144, 48, 16384, 65536)},
      {"qwen1.5_moe_a2.7b", qwen15_moe()},
      {"qwen3_30b_a3b", qwen3_moe(48, 2048, 32, 6144, 768)},
      {"qwen3_235b_a22b", qwen3_moe(94, 4096, 64, 12288, 1536)},
      {"olmoe_1b_7b", olmoe()},
      {"gpt_oss_20b", gpt_oss(24, 32)},
      {"gpt_oss_120b", gpt_oss(36, 128)},
      {"bert_base", bert(12, 768, 12)},
      {"bert_large", bert(24, 1024, 16)},
      {"roberta_base", roberta(12, 768, 12)},
      {"t5_small", t5(6, 512, 8, 2048)},
      {"t5_base", t5(12, 768, 12, 3072)},
      {"t5_v1_1_base", t5_v1_1(12, 768, 12, 2048)},
      {"flan_t5_small", t5_v1_1(8, 512, 6, 1024)},
  };
  return models;
}

} // namespace

ModelConfig preset(std::string_view name) {
  for (const Named& model : table()) {
    if (model.name == name) {
      ModelConfig config = model.config;
      config.preset = name;
      return config;
    }
  }
  const std::string near = nearest(name, preset_names());
  raise<ConfigError>("model.preset={} is not a known model\n  try: {}", name,
                     near.empty() ? "pentatron config presets" : "model.preset=" + near);
}

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const Named& model : table()) names.emplace_back(model.name);
  return names;
}

} // namespace pentatron::models
