/// What families with a mixture of experts have in common.
#pragma once

#include <string>

#include "pentatron/checkpoint/hf/families/family.h"

namespace pentatron::checkpoint {

/// How a family names its experts.
struct ExpertNames {
  bool stacked = false;       ///< files have one tensor for all of a layer, as GPT-OSS has them
  const char* block = "mlp."; ///< in files
  const char *gate = "gate_proj", *up = "up_proj", *down = "down_proj"; ///< of one, in files
  const char* shared = "shared_expert.";
  bool router_first = true; ///< in the order of named_parameters()
};

/// The tensors of layer `own` in place of those of an MLP; `hf` is the layer's prefix.
void name_experts(const models::ModelConfig& c, const ExpertNames& names, const std::string& hf,
                  const std::string& own, TensorNames& out);

/// num_experts (also under the name num_local_experts), num_experts_per_tok, norm_topk_prob.
void read_softmax_experts(const ConfigReader& in, int64_t experts, int64_t top_k,
                          models::ModelConfig& c);
void write_softmax_experts(const models::ModelConfig& c, Json& json);

/// decoder_sparse_step and mlp_only_layers of Qwen.
void read_sparse_layers(const ConfigReader& in, models::ModelConfig& c);
void write_sparse_layers(const models::ModelConfig& c, Json& json);

} // namespace pentatron::checkpoint
