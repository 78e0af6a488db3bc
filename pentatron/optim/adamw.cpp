#include "pentatron/kernels/optimizer/optimizer.h"
#include "pentatron/optim/elementwise.h"
#include "pentatron/optim/rules.h"

namespace pentatron::optim {

namespace {

class AdamW final : public Rule {
 public:
  explicit AdamW(const OptimizerConfig& config) : config_(config) {}

  std::vector<RuleState> state(at::ScalarType acc) const override {
    const bool decayed = !config_.decoupled_weight_decay;
    const double b1 = config_.adam_beta1, b2 = config_.adam_beta2;
    return {
        {"exp_avg", state_dtype(config_.exp_avg_dtype, acc), {b1, 1 - b1, false, decayed}},
        {"exp_avg_sq", state_dtype(config_.exp_avg_sq_dtype, acc), {b2, 1 - b2, true, decayed}}};
  }
  bool takes_control() const override { return config_.decoupled_weight_decay; }
  void step(const ShardState& part, const Hyperparameters& how) const override {
    Hyperparameters own = how;
    if (!config_.decoupled_weight_decay && how.weight_decay != 0) {
      at::Tensor(part.shard.gradients).mul_(how.grad_scale).add_(part.master, how.weight_decay);
      own.grad_scale = 1;
      own.weight_decay = 0;
    }
    auto a = elementwise_args<kernels::AdamWArgs>(part, own);
    a.exp_avg = part.state[0].data_ptr();
    a.exp_avg_sq = part.state[1].data_ptr();
    a.beta1 = config_.adam_beta1;
    a.beta2 = config_.adam_beta2;
    a.eps = config_.adam_eps;
    a.step = how.step;
    a.first_step = how.first_step;
    kernels::adamw(a, nn::KernelContext(part.shard.values));
  }

 private:
  OptimizerConfig config_;
};

} // namespace

std::unique_ptr<Rule> make_adamw(const OptimizerConfig& config) {
  return std::make_unique<AdamW>(config);
}

} // namespace pentatron::optim
