#include "pentatron/kernels/optimizer/optimizer.h"
#include "pentatron/optim/elementwise.h"
#include "pentatron/optim/rules.h"

namespace pentatron::optim {

namespace {

class Lion final : public Rule {
 public:
  explicit Lion(const OptimizerConfig& config) : config_(config) {}

  std::vector<RuleState> state(at::ScalarType acc) const override {
    const double b2 = config_.lion_beta2;
    return {{"exp_avg", state_dtype(config_.exp_avg_dtype, acc), {b2, 1 - b2}}};
  }
  bool takes_control() const override { return true; }
  void step(const ShardState& part, const Hyperparameters& how) const override {
    auto a = elementwise_args<kernels::LionArgs>(part, how);
    a.exp_avg = part.state[0].data_ptr();
    a.beta1 = config_.lion_beta1;
    a.beta2 = config_.lion_beta2;
    kernels::lion(a, nn::KernelContext(part.shard.values));
  }

 private:
  OptimizerConfig config_;
};

} // namespace

std::unique_ptr<Rule> make_lion(const OptimizerConfig& config) {
  return std::make_unique<Lion>(config);
}

} // namespace pentatron::optim
