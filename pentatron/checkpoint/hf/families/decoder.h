/// What decoders with RMSNorm, rotary positions and gated MLPs have in common.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "pentatron/checkpoint/hf/families/experts.h"
#include "pentatron/checkpoint/hf/families/family.h"

namespace pentatron::checkpoint {

/// Values of keys that config.json leaves out.
struct DecoderDefaults {
  double norm_eps = 1e-6;
  std::optional<int64_t> head_size = {};
  std::optional<int64_t> kv_heads = {}; ///< none: as many as there are heads
  std::pair<const char*, const char*> activation = {"hidden_act", "silu"}; ///< key, value
  bool tied = false;
  int64_t max_positions = 2048;
};
/// Sizes, norm, activation, attention dropout and tying; the keys are those of Llama.
models::ModelConfig read_decoder(const ConfigReader& in, const DecoderDefaults& defaults = {});
Json write_decoder(const models::ModelConfig& c);
/// Family::obstacle of those whose heads have to divide the hidden size, whatever size they have.
std::string uneven_heads(const models::ModelConfig& c);

/// Rotary positions: transformers 5 has everything under rope_parameters; earlier files have
/// separate keys rope_theta and rope_scaling. `partial`: the architecture rotates a share of each
/// head, by default `share`.
struct RopeRule {
  bool partial = false;
  double share = 1;
  double theta = 10000; ///< where files have none
};
void read_rope(const ConfigReader& in, const RopeRule& rule, models::ModelConfig& c);
/// As transformers 5 writes it, and 4 before it, so that both and other programs read the file.
void write_rope(const models::ModelConfig& c, const RopeRule& rule, Json& json);

/// sliding_window: null means no window; without the key the result is `otherwise`.
std::optional<int64_t> read_window(const ConfigReader& in, int64_t otherwise);

/// layer_types: which layers do not have the window c.window_size. Where the key is missing, every
/// `full_every`-th has none.
/// Throws DataError for kinds of layers that are neither.
void read_layer_types(const ConfigReader& in, int64_t full_every, models::ModelConfig& c);
void write_layer_types(const models::ModelConfig& c, Json& json);
/// Which layers of Qwen have windows, where layer_types is missing.
enum class WindowRule : uint8_t {
  kFromMaxWindowLayers,     ///< those from max_window_layers on
  kEvenBelowMaxWindowLayers ///< every other one of those before, from the first
};
/// Windows of Qwen: layer_types, or max_window_layers.
void read_layer_windows(const ConfigReader& in, WindowRule rule, models::ModelConfig& c);
void write_layer_windows(const models::ModelConfig& c, Json& json);

/// How a family names and stores what is in a layer.
struct DecoderLayout {
  bool fused_qkv = false;     ///< one matrix for q, k and v
  bool fused_gate_up = false; ///< one matrix for gate and up
  /// The norms: Hugging Face's name and ours, in order.
  std::vector<std::pair<const char*, const char*>> norms = {
      {"input_layernorm", "attention_norm"}, {"post_attention_layernorm", "mlp_norm"}};
  ExpertNames experts = {};
};
/// The tensors of layer `own` of the kind of layer `like`; `hf` is its prefix.
void name_layer(const models::ModelConfig& c, const DecoderLayout& layout, int64_t like,
                const std::string& hf, const std::string& own, TensorNames& out);
/// The tensors, with biases and q/k norms where the model has them.
void name_decoder(const models::ModelConfig& c, const DecoderLayout& layout, TensorNames& out);
/// Those of Llama.
inline void name_llama(const models::ModelConfig& c, TensorNames& out) {
  name_decoder(c, {}, out);
}

} // namespace pentatron::checkpoint
