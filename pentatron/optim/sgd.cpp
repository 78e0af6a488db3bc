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
    return {{"momentum_buffer", acc}};
  }
  void step(const ShardState& shard, nn::FlatRange range,
            const Hyperparameters& how) const override {
    auto a = elementwise_args<kernels::SgdArgs>(shard, range, how);
    if (!shard.state.empty()) a.momentum_buffer = at_element(shard.state[0], range.begin);
    a.momentum = config_.sgd_momentum;
    a.nesterov = config_.sgd_nesterov;
    kernels::sgd(a, nn::KernelContext(shard.shard.values));
  }

 private:
  OptimizerConfig config_;
};

} // namespace

std::unique_ptr<Rule> make_sgd(const OptimizerConfig& config) {
  return std::make_unique<Sgd>(config);
}

} // namespace pentatron::optim
