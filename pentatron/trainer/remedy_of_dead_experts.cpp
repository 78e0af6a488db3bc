#include "pentatron/trainer/remedy_of_dead_experts.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace pentatron::trainer {

std::string remedy_of_dead_experts(const models::ModelConfig& model) {
  using models::LoadBalancing;
  if (model.moe_router_enable_expert_bias && model.moe_router_bias_update_rate < 0.5)
    return fmt::format("model.moe_router_bias_update_rate={:g}",
                       model.moe_router_bias_update_rate > 0 ? 2 * model.moe_router_bias_update_rate
                                                             : 0.001);
  if (model.balanced_by(LoadBalancing::kSinkhorn) || model.balanced_by(LoadBalancing::kNone))
    return "model.moe_router_load_balancing_type=global_aux_loss model.moe_aux_loss_coeff=0.01";
  std::vector<double> more = model.moe_aux_loss_coeff;
  for (double& coeff : more)
    coeff = coeff > 0 ? std::min(2 * coeff, models::kMostRouterLoss) : 0.01;
  return more.size() == 1 ? fmt::format("model.moe_aux_loss_coeff={:g}", more[0])
                          : fmt::format("model.moe_aux_loss_coeff=[{:g}]", fmt::join(more, ","));
}

} // namespace pentatron::trainer
