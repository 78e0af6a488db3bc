/// Families of models as llama.cpp's files and Hugging Face's config.json have them. Nothing but a
/// family's own file knows which family it is: the rest asks for these properties.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "pentatron/checkpoint/gguf/decoder.h"
#include "pentatron/checkpoint/gguf/key_reader.h"
#include "pentatron/checkpoint/gguf/key_writer.h"

namespace pentatron::checkpoint {

/// Hugging Face's names of a layer's norms; null: the layer has no such norm.
struct GgufNorms {
  const char* attention = "input_layernorm";
  const char* attention_output = nullptr;
  const char* mlp = "post_attention_layernorm";
  const char* mlp_output = nullptr;
};

/// Which biases attention has.
enum class GgufBiases : uint8_t {
  kNone,     ///< attention_bias has no effect
  kRefused,  ///< attention_bias=true has no place in a file
  kQkv,      ///< always, of q, k and v
  kQkvGiven, ///< of q, k and v if attention_bias is true
  kGiven,    ///< of all four projections if attention_bias is true
  kAll       ///< attention_bias must be true: of all four projections
};

enum class GgufHeadNorms : uint8_t { kNone, kHead, kProjection }; ///< of q and k

/// Experts in every layer, and Hugging Face's keys of them.
struct GgufExperts {
  const char* count = nullptr;      ///< null: layers have an MLP
  const char* ffn = nullptr;        ///< of an expert; null: intermediate_size
  const char* shared_ffn = nullptr; ///< null: no shared experts
  bool writes_ffn = false;          ///< files have the size of an expert, and of shared ones
  bool biases = false;              ///< of the router and of experts
  bool selection_bias = false;      ///< of scores by which experts are selected
  bool shared_gate = true;          ///< of shared experts
  std::optional<bool> normed = {};  ///< norm_topk_prob as llama.cpp implies it; none: not a key
  bool normed_default = false;      ///< where config.json leaves it out
  int64_t default_count = 8, default_top_k = 2;
  int64_t default_ffn = 0, default_shared_ffn = 0;
};

/// What decoders that are made of Llama's blocks differ in.
struct GgufDecoder {
  GgufNorms norms = {};
  GgufHeadNorms head_norms = GgufHeadNorms::kNone;
  float norm_shift = 0; ///< a file's norms are Hugging Face's plus this
  bool rotary_rows = false;
  bool fused_qkv = false, fused_mlp = false;
  GgufExperts experts = {};
  bool sinks = false;            ///< attention has them
  bool yarn_truncate = true;     ///< for rope_parameters; files do not store it
  bool names_plain_rope = false; ///< a config.json without rope_scaling means one
  GgufBiases biases = GgufBiases::kNone;
  bool mlp_bias = false;       ///< is a key
  bool llama3_rope = false;    ///< rope_freqs.weight may be there
  bool longrope = false;       ///< rope_factors_long.weight and _short may be there
  bool partial_rotary = false; ///< partial_rotary_factor is a key
  bool writes_rotary = false;  ///< the number of dimensions that rotate
  bool needs_untied = false;   ///< tied embeddings have no place in a file
  bool square = false;         ///< a file's heads are as wide together as the hidden states
  bool has_head_size = true;   ///< head_dim is a key
  bool window_given = false;   ///< read_more reads the window
  const char* activation_key = "hidden_act";
  std::span<const std::string_view> activations = kSilu; ///< the first is the default
  /// Of keys that config.json leaves out.
  bool tied = false, attention_bias = false;
  std::optional<int64_t> head_size = {}; ///< none: hidden / heads
  int64_t positions = 2048;
  double norm_epsilon = 1e-6, rope_theta = 10000, rotary_share = 1;
  /// What is its own. May be null.
  void (*read_more)(GgufKeyReader& in, const GgufStructure& s, Json& hf) = nullptr;
  void (*write_more)(GgufKeyWriter& w, int64_t positions) = nullptr;

  static constexpr std::string_view kSilu[] = {"silu", "swish"};
};

/// llama.cpp's architecture and Hugging Face's names of it.
struct GgufFamily {
  std::string_view architecture, model_type, model_class;
  bool windowed = false; ///< of an architecture of several families: files with a window
  GgufDecoder decoder = {};
  std::span<const std::string_view> keys = {}; ///< additional keys of this family's files
  std::string_view optional_prefix = {};       ///< of tensors, which some models lack
  std::vector<GgufMapEntry> (*map)(const GgufStructure& s) = decoder_map;
  void (*read)(GgufKeyReader& in, GgufConfig& out) = read_decoder;
  void (*write)(GgufKeyWriter& w) = write_decoder;
};

/// Of an architecture of several families, the first is what a file without more is.
std::span<const GgufFamily> gguf_families();
/// Null: it is not known.
const GgufFamily* find_gguf_family(std::string_view GgufFamily::*name, std::string_view value);
/// "llama, mistral or gpt2": Hugging Face's.
std::string gguf_family_list();

} // namespace pentatron::checkpoint
