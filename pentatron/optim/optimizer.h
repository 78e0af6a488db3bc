/// One step over the flat shards of a store: gradient norm, clipping, the update rules, and the
/// working copy of the weights. Frozen shards have no part in it.
///
/// For bf16 models the optimizer holds fp32 master weights and writes the rounded copy in the same
/// pass; for fp32 and fp64 the model's values are the master weights.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "pentatron/nn/param_store.h"
#include "pentatron/optim/optimizer_config.h"
#include "pentatron/optim/param_group.h"
#include "pentatron/optim/rule.h"

namespace pentatron::optim {

/// Sum of the squared gradients of `shards`: summed over the ranks that hold parts or copies of the
/// model it counts every true element once. Ranks that hold the same shards by data parallelism
/// must not all add theirs.
double counted_sum_of_squares(const std::vector<nn::Shard>& shards);

/// Whether the gradients that the sum leaves out (copies of what other ranks count) hold a NaN or
/// infinity; of the shards with `all`, everything is left out.
bool has_nonfinite_copies(const std::vector<nn::Shard>& shards, bool all = false);

/// Name of the first parameter whose gradient holds a NaN or infinity, or empty.
std::string first_nonfinite_gradient(const std::vector<nn::Shard>& shards);

class Optimizer {
 public:
  /// Updates what the trainable ones of `shards` refer to, each by its family's rule.
  Optimizer(const OptimizerConfig& config, std::vector<nn::Shard> shards);

  /// Values may have changed behind the optimizer's back (initialisation, loading): takes them as
  /// master weights.
  void adopt_values();

  /// `grad_scale` multiplies every gradient: the clip coefficient.
  void step(double lr, double weight_decay, double grad_scale);

  int64_t steps() const { return steps_; }
  /// By name: the steps that had been made when a parameter was first trained, where that is not 0.
  /// The same on all ranks, of parameters of any rank.
  using FirstSteps = std::map<std::string, int64_t>;
  const FirstSteps& first_steps() const { return first_steps_; }
  void set_steps(int64_t steps, FirstSteps first_steps = {});

  /// Every tensor of the state, piece by piece: whose, and what it is ("exp_avg").
  using StateFn = std::function<void(const nn::Shard&, const nn::Piece&, const std::string& what,
                                     const at::Tensor& data)>;
  void for_each_state(const StateFn& fn);

 private:
  struct Run { // neighbours in a shard that are updated at once
    nn::FlatRange range;
    std::vector<nn::Piece> pieces; // from range.begin
    Factors factors;
    int64_t first_step = 0;
  };
  struct State {
    ShardState shard;
    const Rule* rule = nullptr;
    std::vector<std::string> names; // of the state
    at::Tensor remainder;           // in place of master weights
    std::vector<Run> runs;
  };
  std::vector<Run> runs_of(const State& state) const;
  void step(const State& state, const Run& run, const Hyperparameters& how) const;
  const Rule& rule_of(const nn::Param& param);

  OptimizerConfig config_;
  std::map<std::string, std::unique_ptr<Rule>> rules_; // by nn::Param::rule
  std::vector<State> states_;
  int64_t steps_ = 0;
  FirstSteps first_steps_;
};

/// max_norm / (norm + 1e-6) if that is below 1, else 1; 1 for max_norm 0.
double clip_coefficient(double max_norm, double norm);

} // namespace pentatron::optim
