/// Phi-3: Llama with one matrix for q, k and v, one for gate and up, and rotary positions on a
/// share of each head. Source: Abdin et al. 2024 (arXiv:2404.14219).
#include "pentatron/checkpoint/hf/families/all.h"
#include "pentatron/checkpoint/hf/families/decoder.h"

namespace pentatron::checkpoint {

namespace {

constexpr RopeRule kRope = {.partial = true};

/// Other names of longrope, and the original context where the file has none, as in transformers.
Json with_longrope(const ConfigReader& in) {
  Json json = in.json();
  if (!json.contains("original_max_position_embeddings"))
    json["original_max_position_embeddings"] = 4096;
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (!json.contains(key) || !json[key].is_object()) continue;
    for (const char* type : {"rope_type", "type"})
      if (json[key].contains(type) && (json[key][type] == "su" || json[key][type] == "yarn"))
        json[key][type] = "longrope";
  }
  return json;
}

models::ModelConfig read_phi3(const ConfigReader& in) {
  models::ModelConfig c = read_decoder(in, {.norm_eps = 1e-5, .max_positions = 4096});
  c.hidden_dropout = in.get<double>("resid_pdrop", 0.0);
  c.embedding_dropout = in.get<double>("embd_pdrop", 0.0);
  read_rope(ConfigReader(with_longrope(in), in.where()), kRope, c);
  if (c.rope_scaling.type != models::RopeScalingType::kNone &&
      c.rope_scaling.type != models::RopeScalingType::kLongRope)
    in.refuse("for phi3, a rope_type other than default and longrope");
  c.window_size = in.find<int64_t>("sliding_window");
  return c;
}

Json write_phi3(const models::ModelConfig& c) {
  Json json = write_decoder(c);
  json["resid_pdrop"] = c.hidden_dropout;
  json["embd_pdrop"] = c.embedding_dropout.value_or(c.hidden_dropout);
  json["sliding_window"] = c.window_size ? Json(*c.window_size) : Json();
  const bool scaled = c.rope_scaling.type == models::RopeScalingType::kLongRope;
  json["original_max_position_embeddings"] =
      scaled ? c.rope_scaling.original_max_position_embeddings : c.max_position_embeddings;
  write_rope(c, kRope, json);
  return json;
}

/// transformers counts factors without head_dim.
std::string other_factors(const models::ModelConfig& c) {
  if (c.rope_scaling.type != models::RopeScalingType::kLongRope) return {};
  const auto factors = std::ssize(c.rope_scaling.short_factor);
  const auto head = static_cast<double>(c.hidden_size / c.num_attention_heads);
  const int64_t expected = static_cast<int64_t>(head * c.rotary_percent) / 2;
  if (factors == expected) return {};
  return fmt::format("longrope has {} factors and not {}, half of hidden_size={} / "
                     "num_attention_heads={} * partial_rotary_factor={}",
                     factors, expected, c.hidden_size, c.num_attention_heads, c.rotary_percent);
}

void name_phi3(const models::ModelConfig& c, TensorNames& out) {
  name_decoder(c, {.fused_qkv = true, .fused_gate_up = true}, out);
}

} // namespace

Family phi3_family() {
  return {
      .model_type = "phi3",
      .architecture = [](const models::ModelConfig&) -> std::string { return "Phi3ForCausalLM"; },
      .read = read_phi3,
      .write = write_phi3,
      .names = name_phi3,
      .padding_token = 32000,
      .obstacle = other_factors};
}

} // namespace pentatron::checkpoint
