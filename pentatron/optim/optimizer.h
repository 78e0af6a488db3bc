/// One step over the flat shards of a store: gradient norm, clipping, AdamW or SGD, and the working
/// copy of the weights.
///
/// For bf16 models the optimizer holds fp32 master weights and writes the rounded copy in the same
/// pass; for fp32 and fp64 the model's values are the master weights.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "pentatron/nn/param_store.h"
#include "pentatron/optim/optimizer_config.h"

namespace pentatron::optim {

/// Sum of the squared gradients of `shards`: summed over the ranks that hold parts or copies of the
/// model it counts every true element once. Ranks that hold the same shards by data parallelism
/// must not all add theirs.
double counted_sum_of_squares(const std::vector<nn::Shard>& shards);

/// Name of the first parameter whose gradient holds a NaN or infinity, or empty.
std::string first_nonfinite_gradient(const std::vector<nn::Shard>& shards);

class Optimizer {
 public:
  /// Updates what `shards` refer to, except parameters that are not trainable.
  Optimizer(const OptimizerConfig& config, std::vector<nn::Shard> shards);

  /// Values may have changed behind the optimizer's back (initialisation, loading): takes them as
  /// master weights.
  void adopt_values();

  /// `grad_scale` multiplies every gradient: the clip coefficient.
  void step(double lr, double weight_decay, double grad_scale);

  int64_t steps() const { return steps_; }
  void set_steps(int64_t steps) { steps_ = steps; }

  /// Every tensor of the state, piece by piece: what it is ("exp_avg"), whose, and from which
  /// element of the rank's tensor, flattened.
  using StateFn = std::function<void(const nn::Param&, int64_t param_begin, const std::string& what,
                                     const at::Tensor& piece)>;
  void for_each_state(const StateFn& fn);

 private:
  struct Run { // neighbours in a shard with the same weight decay
    int64_t begin = 0, size = 0;
    bool decay = false;
  };
  struct State {
    nn::Shard shard;
    std::vector<Run> runs;
    at::Tensor master; // the shard's values themselves unless those are of lower precision
    at::Tensor exp_avg, exp_avg_sq; // SGD: exp_avg is the velocity
  };
  void update(const State& state, const Run& run, double lr, double weight_decay,
              double grad_scale) const;

  OptimizerConfig config_;
  std::vector<State> states_;
  int64_t steps_ = 0;
};

/// max_norm / (norm + 1e-6) if that is below 1, else 1; 1 for max_norm 0.
double clip_coefficient(double max_norm, double norm);

} // namespace pentatron::optim
