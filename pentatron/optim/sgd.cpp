#include "pentatron/kernels/optimizer/optimizer.h"
#include "pentatron/optim/elementwise.h"
#include "pentatron/optim/rules.h"

namespace pentatron::optim {

namespace {

class Sgd final : public Rule {
 public:
  explicit Sgd(const OptimizerConfig& config) : config_(config) {}

  std::vector<RuleState> state(at::ScalarType acc) const override {
    if (config_.sgd_momentum == 0) return {};
    return {{"momentum_buffer",
             state_dtype(config_.exp_avg_dtype, acc),
             {config_.sgd_momentum, 1, false, true}}};
  }
  bool takes_control() const override { return true; }
  void step(const ShardState& part, const Hyperparameters& how) const override {
    auto a = elementwise_args<kernels::SgdArgs>(part, how);
    if (!part.state.empty()) a.momentum_buffer = part.state[0].data_ptr();
    a.momentum = config_.sgd_momentum;
    a.nesterov = config_.sgd_nesterov;
    kernels::sgd(a, nn::KernelContext(part.shard.values));
  }

 private:
  OptimizerConfig config_;
};

} // namespace

std::unique_ptr<Rule> make_sgd(const OptimizerConfig& config) {
  return std::make_unique<Sgd>(config);
}

} // namespace pentatron::optim
