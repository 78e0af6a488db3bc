/// T5, T5 1.1 and models of their kind (Flan-T5).
/// Source: Raffel et al. 2020 (arXiv:1910.10683).
#include "pentatron/checkpoint/hf/families/all.h"

#include <fmt/ranges.h>

namespace pentatron::checkpoint {

namespace {

using models::ModelConfig;

/// dense_act_fn and is_gated_act, which feed_forward_proj gives where they are missing.
models::ActivationFunction read_mlp(const ConfigReader& in) {
  const auto mlp = in.get<std::string>("feed_forward_proj", "relu");
  const bool gated = mlp.starts_with("gated-");
  // "gated-gelu" is the approximation with tanh, by history.
  const std::string name = mlp == "gated-gelu" ? "gelu_new" : gated ? mlp.substr(6) : mlp;
  if (!find_activation(name, gated))
    in.refuse("feed_forward_proj=" + mlp,
              fmt::format("feed_forward_proj=NAME, with a gate gated-NAME, NAME one of {}",
                          fmt::join(gated_activation_names(), ", ")));
  return read_activation(in, "dense_act_fn", name, in.get<bool>("is_gated_act", gated));
}

/// Models of other tasks have other tensors. T5Model is one without the output layer.
void require_task(const ConfigReader& in) {
  const auto found = in.json().find("architectures");
  if (found == in.json().end() || !found->is_array() || found->empty() ||
      !found->front().is_string())
    return;
  const std::string name = found->front().get<std::string>();
  if (name != "T5ForConditionalGeneration" && name != "T5WithLMHeadModel" && name != "T5Model")
    in.refuse("the architecture " + name,
              "save the whole model, with T5ForConditionalGeneration.save_pretrained(DIR)");
}

ModelConfig read_t5(const ConfigReader& in) {
  require_task(in);
  ModelConfig c = ModelConfig::default_of(models::ModelType::kT5);
  c.num_layers = in.get<int64_t>("num_layers", 6);
  c.num_decoder_layers = in.get<int64_t>("num_decoder_layers", c.num_layers);
  c.hidden_size = in.get<int64_t>("d_model", 512);
  c.num_attention_heads = in.get<int64_t>("num_heads", 8);
  c.kv_channels = in.get<int64_t>("d_kv", 64);
  c.ffn_hidden_size = in.get<int64_t>("d_ff", 2048);
  c.vocab_size = in.get<int64_t>("vocab_size", 32128);
  c.relative_attention_num_buckets = in.get<int64_t>("relative_attention_num_buckets", 32);
  c.relative_attention_max_distance = in.get<int64_t>("relative_attention_max_distance", 128);
  c.layernorm_epsilon = in.get<double>("layer_norm_epsilon", 1e-6);
  c.attention_dropout = c.hidden_dropout = in.get<double>("dropout_rate", 0.1);
  c.activation_func = read_mlp(in);
  const bool tied = in.get<bool>("tie_word_embeddings", true);
  c.untie_embeddings_and_output_weights = !tied;
  // There and null is false, as in transformers.
  c.scale_decoder_outputs = in.find<bool>("scale_decoder_outputs")
                                .value_or(!in.json().contains("scale_decoder_outputs") && tied);
  c.decoder_start_token = in.get<int64_t>("decoder_start_token_id", 0);
  if (const auto pad = in.get<int64_t>("pad_token_id", 0); pad != c.decoder_start_token)
    c.decoder_pad_token = pad;
  if (!in.get<bool>("is_encoder_decoder", true)) in.refuse("is_encoder_decoder=false");
  return c;
}

Json write_t5(const ModelConfig& c) {
  using A = models::ActivationFunction;
  const std::string mlp = c.activation_func == A::kGeGluTanh
                              ? "gated-gelu"
                              : (c.gated() ? "gated-" : "") + activation_name(c.activation_func);
  const std::string act =
      c.activation_func == A::kGeGluTanh ? "gelu_new" : activation_name(c.activation_func);
  return {{"num_layers", c.num_layers},
          {"num_decoder_layers", c.decoder_layers()},
          {"d_model", c.hidden_size},
          {"num_heads", c.num_attention_heads},
          {"d_kv", c.head_size()},
          {"d_ff", c.ffn_size()},
          {"vocab_size", c.vocab_size},
          {"relative_attention_num_buckets", c.relative_attention_num_buckets},
          {"relative_attention_max_distance", c.relative_attention_max_distance},
          {"layer_norm_epsilon", c.layernorm_epsilon},
          {"dropout_rate", c.hidden_dropout},
          {"feed_forward_proj", mlp},
          {"dense_act_fn", act},
          {"is_gated_act", c.gated()},
          {"scale_decoder_outputs", c.scale_decoder_outputs},
          {"tie_word_embeddings", !c.untie_embeddings_and_output_weights},
          {"decoder_start_token_id", c.decoder_start_token},
          {"pad_token_id", c.decoder_pad_token.value_or(c.decoder_start_token)},
          {"is_encoder_decoder", true}};
}

void name_side(const ModelConfig& c, const std::string& side, TensorNames& out) {
  const bool decodes = side == "decoder";
  const int64_t layers = decodes ? c.decoder_layers() : c.num_layers;
  for (int64_t i = 0; i < layers; ++i) {
    const std::string hf = fmt::format("{}.block.{}.layer.", side, i),
                      own = fmt::format("{}.layers.{}.", side, i);
    for (const char* part : {"q", "k", "v"})
      out.add_module(hf + "0.SelfAttention." + part, own + "attention.qkv", false, part);
    out.add_module(hf + "0.SelfAttention.o", own + "attention.proj");
    if (i == 0)
      out.add_module(hf + "0.SelfAttention.relative_attention_bias", side + ".relative_bias");
    out.add_module(hf + "0.layer_norm", own + "attention_norm");
    if (decodes) {
      out.add_module(hf + "1.EncDecAttention.q", own + "cross_attention.q");
      for (const char* part : {"k", "v"})
        out.add_module(std::string(hf) + "1.EncDecAttention." + part, own + "cross_attention.kv",
                       false, part);
      out.add_module(hf + "1.EncDecAttention.o", own + "cross_attention.proj");
      out.add_module(hf + "1.layer_norm", own + "cross_attention_norm");
    }
    const std::string mlp = hf + (decodes ? "2" : "1");
    if (c.gated()) {
      out.add_module(mlp + ".DenseReluDense.wi_0", own + "mlp.fc1", false, "gate");
      out.add_module(mlp + ".DenseReluDense.wi_1", own + "mlp.fc1", false, "up");
    } else {
      out.add_module(mlp + ".DenseReluDense.wi", own + "mlp.fc1");
    }
    out.add_module(mlp + ".DenseReluDense.wo", own + "mlp.fc2");
    out.add_module(mlp + ".layer_norm", own + "mlp_norm");
  }
  out.add_module(side + ".final_layer_norm", side + ".final_norm");
}

void name_t5(const ModelConfig& c, TensorNames& out) {
  out.add("shared.weight", "embedding.word.weight");
  name_side(c, "encoder", out);
  name_side(c, "decoder", out);
  if (c.untie_embeddings_and_output_weights) out.add("lm_head.weight", "output.weight");
}

bool is_extra_of_t5(std::string_view name, const ModelConfig&) {
  return name == "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight";
}

std::string original_of_t5(std::string_view name, const ModelConfig&) {
  const bool copied =
      name == "encoder.embed_tokens.weight" || name == "decoder.embed_tokens.weight";
  return copied ? "shared.weight" : "";
}

} // namespace

Family t5_family() {
  return {.model_type = "t5",
          .type = models::ModelType::kT5,
          .architecture = [](const ModelConfig&) -> std::string {
            return "T5ForConditionalGeneration";
          },
          .read = read_t5,
          .write = write_t5,
          .names = name_t5,
          .base_prefix = "",
          .aliases = {{"hidden_size", "d_model"},
                      {"num_attention_heads", "num_heads"},
                      {"num_hidden_layers", "num_layers"},
                      {"head_dim", "d_kv"}},
          .is_extra = is_extra_of_t5,
          .tensors_decide_tying = true, // the key says whether outputs are scaled
          .original_of = original_of_t5};
}

} // namespace pentatron::checkpoint
