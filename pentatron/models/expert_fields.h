/// Keys of a model with a mixture of experts, of ModelConfig C.
#pragma once

#include <tuple>

#include "pentatron/config/field.h"
#include "pentatron/models/model_enums.h"

namespace pentatron::models {

template <class C> constexpr auto expert_fields() {
  using config::field;
  using config::OnResume;
  using T = ModelType;
  return std::tuple{
      field("num_moe_experts", &C::num_moe_experts,
            "mixture of experts: number of experts in each expert layer; default: no expert layers")
          .range(1, kMostExperts)
          .only_for(T::kGpt),
      field("moe_layer_freq", &C::moe_layer_freq,
            "which layers have experts instead of an MLP; a number N: the layers whose number, "
            "counted from 0, is a multiple of N; or a list with 1 for each expert layer and 0 for "
            "each other layer, such as \"[0]*3+[1]*58\"")
          .only_for(T::kGpt),
      field("moe_ffn_hidden_size", &C::moe_ffn_hidden_size,
            "hidden size of each expert; default: ffn_hidden_size")
          .size()
          .only_for(T::kGpt),
      field("moe_latent_size", &C::moe_latent_size,
            "size of the latent vectors that experts process: tokens are projected to this size "
            "before they are sent to their experts, and the results are projected back; the router "
            "and the shared experts process the hidden states; default: no projection")
          .size()
          .only_for(T::kGpt),
      field("moe_router_topk", &C::moe_router_topk, "number of experts that process each token")
          .range(1, kMostExperts)
          .only_for(T::kGpt),
      field("moe_router_logit_bias", &C::moe_router_logit_bias,
            "add a learned bias to the router's outputs, before scores are computed from them")
          .only_for(T::kGpt),
      field("moe_router_score_function", &C::moe_router_score_function,
            "function that turns the router's outputs into the experts' scores")
          .only_for(T::kGpt),
      field("moe_router_pre_softmax", &C::moe_router_pre_softmax,
            "moe_router_score_function=softmax: compute it over all experts instead of the "
            "selected ones")
          .only_for(T::kGpt),
      field("moe_router_norm_topk_prob", &C::moe_router_norm_topk_prob,
            "divide the scores of the selected experts by their sum; default: true with "
            "moe_router_score_function=sigmoid or sqrtsoftplus and more than one expert per token, "
            "otherwise false")
          .only_for(T::kGpt),
      field("moe_router_topk_scaling_factor", &C::moe_router_topk_scaling_factor,
            "factor applied to the scores of the selected experts")
          .positive()
          .max(1e6)
          .only_for(T::kGpt),
      field("moe_router_num_groups", &C::moe_router_num_groups,
            "number of groups of experts for group-limited routing; default: no groups")
          .range(1, kMostExperts)
          .only_for(T::kGpt),
      field("moe_router_group_topk", &C::moe_router_group_topk,
            "number of groups that the experts of a token are selected from")
          .range(1, kMostExperts)
          .only_for(T::kGpt),
      field("moe_router_group_score_topk", &C::moe_router_group_score_topk,
            "number of experts whose scores add up to the score of their group; default: "
            "moe_router_topk / moe_router_group_topk")
          .range(1, kMostExperts)
          .only_for(T::kGpt),
      field("moe_router_enable_expert_bias", &C::moe_router_enable_expert_bias,
            "give each expert a bias that is added to its score for selection only, not for its "
            "weight; training adjusts the biases towards equal load")
          .only_for(T::kGpt),
      field("moe_router_bias_update_rate", &C::moe_router_bias_update_rate,
            "amount by which each step changes the expert biases: up for experts with less than "
            "the mean load, down for experts with more; default with --hf: 0")
          .range(0, 1)
          .on_resume(OnResume::kTold)
          .only_for(T::kGpt),
      field("moe_router_load_balancing_type", &C::moe_router_load_balancing_type,
            "how training balances the load of experts; several losses can be combined; "
            "global_aux_loss: loss on the load in the last step; seq_aux_loss: loss on the load in "
            "each sample; aux_loss: loss on the load in each microbatch of a data-parallel rank; "
            "sinkhorn: select experts by Sinkhorn iteration over the tokens of a rank; none: no "
            "balancing")
          .not_empty()
          .or_one()
          .on_resume(OnResume::kTold)
          .only_for(T::kGpt),
      field("moe_aux_loss_coeff", &C::moe_aux_loss_coeff,
            "weight of each loss in moe_router_load_balancing_type; with equal load a load "
            "balancing loss is 1")
          .not_empty()
          .or_one()
          .non_negative()
          .max(kMostRouterLoss)
          .on_resume(OnResume::kTold)
          .only_for(T::kGpt),
      field("moe_z_loss_coeff", &C::moe_z_loss_coeff,
            "weight of the router's z-loss, which keeps its outputs small")
          .non_negative()
          .max(kMostRouterLoss)
          .on_resume(OnResume::kTold)
          .only_for(T::kGpt),
      field("moe_input_jitter_eps", &C::moe_input_jitter_eps,
            "noise eps of the router: training multiplies its input by random numbers from 1 - eps "
            "to 1 + eps; 0: off")
          .non_negative()
          .max(0.99)
          .on_resume(OnResume::kTold)
          .only_for(T::kGpt),
      field("moe_router_force_load_balancing", &C::moe_router_force_load_balancing,
            "for benchmarks: training sends the same number of tokens to every expert and ignores "
            "the router")
          .on_resume(OnResume::kTold)
          .only_for(T::kGpt),
      field("moe_expert_capacity_factor", &C::moe_expert_capacity_factor,
            "capacity of an expert in training, as a multiple of tokens x moe_router_topk / "
            "num_moe_experts for the tokens of a rank; tokens above the capacity are dropped; "
            "default: no token is dropped")
          .positive()
          .on_resume(OnResume::kTold)
          .only_for(T::kGpt),
      field("moe_token_drop_policy", &C::moe_token_drop_policy,
            "moe_expert_capacity_factor: which tokens of a full expert are dropped; probs: the "
            "tokens with the smallest weights; position: the last tokens")
          .on_resume(OnResume::kTold)
          .only_for(T::kGpt),
      field("moe_pad_expert_input_to_capacity", &C::moe_pad_expert_input_to_capacity,
            "pad the input of every expert with zeros to its capacity, so that tensor sizes are "
            "the same in every step")
          .on_resume(OnResume::kTold)
          .only_for(T::kGpt),
      field("moe_shared_expert_intermediate_size", &C::moe_shared_expert_intermediate_size,
            "total hidden size of the shared experts, which process every token; default: no "
            "shared experts")
          .size()
          .only_for(T::kGpt),
      field("moe_shared_expert_gate", &C::moe_shared_expert_gate,
            "multiply the output of the shared experts by a learned gate")
          .only_for(T::kGpt)};
}

} // namespace pentatron::models
