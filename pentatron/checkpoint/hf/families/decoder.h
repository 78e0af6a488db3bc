/// What decoders with RMSNorm, rotary positions and gated MLPs have in common.
#pragma once

#include "pentatron/checkpoint/hf/families/family.h"

namespace pentatron::checkpoint {

/// Values of keys that config.json leaves out.
struct DecoderDefaults {
  double norm_eps = 1e-6;
};
/// Sizes, norm, activation, attention dropout and tying; the keys are those of Llama.
models::GptConfig read_decoder(const ConfigReader& in, const DecoderDefaults& defaults = {});
Json write_decoder(const models::GptConfig& c);

/// Rotary positions: transformers 5 has everything under rope_parameters; earlier files have
/// rope_theta and rope_scaling beside each other. `partial`: the architecture rotates a share of
/// each head, by default `share`.
struct RopeRule {
  bool partial = false;
  double share = 1;
};
void read_rope(const ConfigReader& in, const RopeRule& rule, models::GptConfig& c);
/// As transformers 5 writes it, and 4 before it, so that both and other programs read the file.
void write_rope(const models::GptConfig& c, const RopeRule& rule, Json& json);

/// layer_types of Qwen: which layers have a sliding window.
void read_layer_windows(const ConfigReader& in, models::GptConfig& c);
void write_layer_windows(const models::GptConfig& c, Json& json);

/// The tensors of Llama's decoder, with biases and q/k norms where the model has them.
void decoder_names(const models::GptConfig& c, TensorNames& out);

} // namespace pentatron::checkpoint
