#include "pentatron/kernels/optimizer/optimizer.h"
#include "pentatron/optim/elementwise.h"
#include "pentatron/optim/rules.h"

namespace pentatron::optim {

namespace {

class Lion final : public Rule {
 public:
  explicit Lion(const OptimizerConfig& config) : config_(config) {}

  std::vector<RuleState> state(at::ScalarType acc) const override { return {{"exp_avg", acc}}; }
  void step(const ShardState& shard, nn::FlatRange range,
            const Hyperparameters& how) const override {
    const ElementwiseArgs a = elementwise_args(shard, range);
    kernels::lion({.dtype = a.dtype,
                   .n = a.n,
                   .param = a.param,
                   .grad = a.grad,
                   .exp_avg = at_element(shard.state[0], range.begin),
                   .param_copy = a.copy,
                   .copy_dtype = a.copy_dtype,
                   .lr = how.lr,
                   .beta1 = config_.lion_beta1,
                   .beta2 = config_.lion_beta2,
                   .weight_decay = how.weight_decay,
                   .grad_scale = how.grad_scale},
                  a.context);
  }

 private:
  OptimizerConfig config_;
};

} // namespace

std::unique_ptr<Rule> make_lion(const OptimizerConfig& config) {
  return std::make_unique<Lion>(config);
}

} // namespace pentatron::optim
