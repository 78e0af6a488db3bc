#include "pentatron/trainer/remedy_of_dead_experts.h"

#include <algorithm>

#include <fmt/format.h>

namespace pentatron::trainer {

std::string remedy_of_dead_experts(const models::ModelConfig& model) {
  using models::LoadBalancing;
  const LoadBalancing type = model.moe_router_load_balancing_type;
  if (model.moe_router_enable_expert_bias && model.moe_router_bias_update_rate < 0.5)
    return fmt::format("model.moe_router_bias_update_rate={:g}",
                       model.moe_router_bias_update_rate > 0 ? 2 * model.moe_router_bias_update_rate
                                                             : 0.001);
  if (type == LoadBalancing::kSinkhorn || type == LoadBalancing::kNone)
    return "model.moe_router_load_balancing_type=global_aux_loss model.moe_aux_loss_coeff=0.01";
  return fmt::format("model.moe_aux_loss_coeff={:g}",
                     model.moe_aux_loss_coeff > 0
                         ? std::min(2 * model.moe_aux_loss_coeff, models::kMostRouterLoss)
                         : 0.01);
}

} // namespace pentatron::trainer
