#include "pentatron/kernels/optimizer/optimizer.h"
#include "pentatron/optim/elementwise.h"
#include "pentatron/optim/rules.h"

namespace pentatron::optim {

namespace {

class AdamW final : public Rule {
 public:
  explicit AdamW(const OptimizerConfig& config) : config_(config) {}

  std::vector<RuleState> state(at::ScalarType acc) const override {
    return {{"exp_avg", acc}, {"exp_avg_sq", acc}};
  }
  void step(const ShardState& shard, nn::FlatRange range,
            const Hyperparameters& how) const override {
    auto a = elementwise_args<kernels::AdamWArgs>(shard, range, how);
    a.exp_avg = at_element(shard.state[0], range.begin);
    a.exp_avg_sq = at_element(shard.state[1], range.begin);
    a.beta1 = config_.adam_beta1;
    a.beta2 = config_.adam_beta2;
    a.eps = config_.adam_eps;
    a.step = how.step;
    kernels::adamw(a, nn::KernelContext(shard.shard.values));
  }

 private:
  OptimizerConfig config_;
};

} // namespace

std::unique_ptr<Rule> make_adamw(const OptimizerConfig& config) {
  return std::make_unique<AdamW>(config);
}

} // namespace pentatron::optim
