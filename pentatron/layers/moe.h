/// A mixture of experts instead of an MLP: each token is sent to k of E experts, and its output is
/// the sum of their outputs, weighted by the router; plus shared experts, which process every
/// token.
///
/// Shapes, T = outer tokens, h = hidden: x [T, h] -> [T, h]. Parameters: router.weight [E, h],
/// router.bias [E] and the buffer router.expert_bias [E]; experts.fc1.weight [E, f or 2 f, h],
/// experts.fc2.weight [E, h, f] and their biases; shared.fc1, shared.fc2 as of an Mlp,
/// shared_gate.weight [1, h]. With a latent of width l, experts have l in place of h, and
/// fc1_latent_proj [l, h] and fc2_latent_proj [h, l], with biases as the experts', lead there and
/// back.
///
/// Collectives: those of parallel::Dispatch and of auxiliary losses; without sequence parallel an
/// all-gather over tp.
/// Source: Shazeer et al. 2017 (arXiv:1701.06538), DeepSeekMoE (arXiv:2401.06066); latents as
/// Megatron-LM's --moe-latent-size.
#pragma once

#include <optional>

#include "pentatron/layers/mlp.h"
#include "pentatron/parallel/expert/balance.h"
#include "pentatron/parallel/expert/capacity.h"
#include "pentatron/parallel/expert/dispatch.h"
#include "pentatron/parallel/expert/grouped_adapter.h"
#include "pentatron/parallel/expert/router.h"
#include "pentatron/parallel/tensor/token_adapter.h"

namespace pentatron::layers {

struct MoeOptions {
  MlpOptions expert;  ///< of one; without dropout
  int64_t latent = 0; ///< width that experts work in; 0: hidden
  parallel::RouterOptions router;
  bool router_bias = false; ///< of the logits
  bool expert_bias = false; ///< of the selection: a buffer that steps move towards equal load
  std::optional<MlpOptions> shared;
  bool shared_gate = false; ///< the shared experts' output times sigmoid(x w)
  // Of training alone:
  parallel::AuxiliaryOptions auxiliary = {};
  parallel::CapacityOptions capacity = {};
  bool sinkhorn = false;
  bool forced_balance = false;
  double jitter = 0; ///< of what the router reads
  uint32_t site = 0; ///< of its random numbers
};

class Moe {
 public:
  Moe(const nn::Scope& scope, const MoeOptions& options, parallel::TensorParallel tp,
      const parallel::ExpertParallel& experts);
  at::Tensor forward(const at::Tensor& x, const nn::ForwardContext& ctx) const;
  static nn::Cost cost(const MoeOptions& options, const nn::LayerShape& shape);

 private:
  static int64_t sent_rows(const MoeOptions& options, int64_t tokens);
  static nn::ExchangeCost exchange_cost(const MoeOptions& options, const nn::LayerShape& shape);
  at::Tensor of_experts(const parallel::Dispatch::Arrived& arrived,
                        const parallel::Dispatch& dispatch, const nn::ForwardContext& ctx) const;
  /// The variant of each row that has arrived [R] int64 on the CPU; undefined: none has one.
  at::Tensor variants_of(const parallel::Dispatch& dispatch, const nn::ForwardContext& ctx) const;
  at::Tensor of_all(const at::Tensor& x, const nn::ForwardContext& ctx) const;
  at::Tensor of_shared(const at::Tensor& x, const nn::ForwardContext& ctx) const;
  /// Of this rank's tokens; a choice that is dropped has expert -1.
  parallel::Routed choose(const at::Tensor& own, const nn::ForwardContext& ctx) const;

  std::string name_;
  MoeOptions options_;
  parallel::TensorParallel tp_;
  parallel::ExpertParallel experts_;
  nn::Param *router_, *router_bias_ = nullptr, *expert_bias_ = nullptr;
  nn::Param *fc1_, *fc1_bias_ = nullptr, *fc2_, *fc2_bias_ = nullptr;
  std::shared_ptr<const parallel::GroupedAdapter> fc1_adapter_, fc2_adapter_; ///< null: none
  std::vector<std::shared_ptr<const parallel::GroupedAdapter>> fc1_variants_, fc2_variants_;
  nn::Param *down_ = nullptr, *down_bias_ = nullptr, *up_ = nullptr, *up_bias_ = nullptr;
  std::optional<Mlp> shared_;
  nn::Param* shared_gate_ = nullptr;
  parallel::TokenAdapters router_adapters_, shared_gate_adapters_;
};

} // namespace pentatron::layers
