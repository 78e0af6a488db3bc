/// Update rules: AdamW, SGD and Lion, as objects that describe their state. The table is in
/// rules.cpp; checkpoints, resharding and the memory plan go by the description.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "pentatron/nn/param_store.h"
#include "pentatron/optim/optimizer_config.h"

namespace pentatron::optim {

/// A tensor that a rule keeps of every parameter: one number for each element, zero at first.
struct RuleState {
  std::string name; ///< in checkpoints "<parameter>/<name>"
  at::ScalarType dtype = at::kFloat;
};

/// A trainable shard with what its rule keeps of it. All vectors are [n] and run in parallel.
struct ShardState {
  nn::Shard shard;
  at::Tensor master;             ///< the values, or a copy of higher precision
  std::vector<at::Tensor> state; ///< as Rule::state() lists them
};

/// Of one step.
struct Hyperparameters {
  double lr = 0;
  double weight_decay = 0;
  double grad_scale = 1; ///< multiplies every gradient: the clip coefficient
  int64_t step = 1;      ///< from 1, of the parameters at hand
};

class Rule {
 public:
  virtual ~Rule() = default;
  /// Whether it needs all elements of a tensor at once: those of a rank are not cut then.
  virtual bool needs_whole() const { return false; }
  /// What it keeps of parameters whose accumulate type is `acc`.
  virtual std::vector<RuleState> state(at::ScalarType acc) const = 0;
  /// Updates the master weights in `range` of the shard, its state, and the values where those are
  /// a copy of lower precision.
  virtual void step(const ShardState& shard, nn::FlatRange range,
                    const Hyperparameters& how) const = 0;
};

/// The rule that a parameter names (nn::Param::rule); an empty name: that of the configuration.
std::unique_ptr<Rule> make_rule(const OptimizerConfig& config, std::string_view name = {});

/// Sets what the configuration says of every parameter's family: its rule, and whether that needs
/// it whole. Before the parameters have storage.
void plan_rules(nn::ParamList& params, const OptimizerConfig& config);

/// Bytes of a trained element: its state, and a master copy if `dtype` is of lower precision.
double state_bytes(const OptimizerConfig& config, at::ScalarType dtype);

} // namespace pentatron::optim
