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
    const ElementwiseArgs a = elementwise_args(shard, range);
    kernels::sgd(
        {.dtype = a.dtype,
         .n = a.n,
         .param = a.param,
         .grad = a.grad,
         .momentum_buffer = shard.state.empty() ? nullptr : at_element(shard.state[0], range.begin),
         .param_copy = a.copy,
         .copy_dtype = a.copy_dtype,
         .lr = how.lr,
         .momentum = config_.sgd_momentum,
         .nesterov = config_.sgd_nesterov,
         .weight_decay = how.weight_decay,
         .grad_scale = how.grad_scale},
        a.context);
  }

 private:
  OptimizerConfig config_;
};

} // namespace

std::unique_ptr<Rule> make_sgd(const OptimizerConfig& config) {
  return std::make_unique<Sgd>(config);
}

} // namespace pentatron::optim
