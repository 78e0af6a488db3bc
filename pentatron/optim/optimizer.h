/// One step over the flat buffers of a ResidentStore: gradient norm, clipping, AdamW or SGD, and
/// the working copy of the weights.
///
/// For bf16 models the optimizer holds fp32 master weights and writes the rounded copy in the same
/// pass; for fp32 and fp64 the model's values are the master weights.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "pentatron/comm/group.h"
#include "pentatron/nn/param_store.h"
#include "pentatron/optim/optimizer_config.h"

namespace pentatron::optim {

/// The global L2 norm: every true element once over all ranks of `model` (the axes that split or
/// copy parameters), whatever the layout.
double global_grad_norm(const nn::ResidentStore& store, const comm::Group& model);

/// Name of the first parameter whose gradient holds a NaN or infinity, or empty.
std::string first_nonfinite_gradient(const nn::ResidentStore& store);

class Optimizer {
 public:
  Optimizer(const OptimizerConfig& config, nn::ResidentStore& store);

  /// Values may have changed behind the optimizer's back (initialisation, loading): takes them as
  /// master weights.
  void adopt_values();

  /// `grad_scale` multiplies every gradient: the clip coefficient.
  void step(double lr, double weight_decay, double grad_scale);

  int64_t steps() const { return steps_; }
  void set_steps(int64_t steps) { steps_ = steps; }

  /// Every tensor of the state with its name, in the shape of its parameter:
  /// fn("layers.0...weight", "exp_avg", tensor).
  void for_each_state(
      const std::function<void(const nn::Param&, const std::string&, const at::Tensor&)>& fn);

 private:
  struct Run { // neighbours in the flat buffers with the same weight decay
    int64_t begin = 0, size = 0;
    bool decay = false;
  };

  OptimizerConfig config_;
  nn::ResidentStore* store_;
  std::vector<Run> runs_;
  at::Tensor master_; // the store's values themselves unless those are of lower precision
  at::Tensor exp_avg_, exp_avg_sq_; // SGD: exp_avg_ is the velocity
  int64_t steps_ = 0;
};

/// max_norm / (norm + 1e-6) if that is below 1, else 1; 1 for max_norm 0.
double clip_coefficient(double max_norm, double norm);

} // namespace pentatron::optim
