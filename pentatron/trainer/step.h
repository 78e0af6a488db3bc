/// One optimizer step: forward and backward of every microbatch, reductions, norm, clipping,
/// update.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "pentatron/build/parallelize.h"
#include "pentatron/data/loader.h"
#include "pentatron/optim/optimizer.h"

namespace pentatron::trainer {

struct StepOptions {
  double lr = 0;
  double weight_decay = 0;
  double clip_grad = 0;
  uint64_t seed = 0;
  bool find_nonfinite_layer =
      false; ///< look at the output of every layer, to name the first that is not finite
};

struct StepResult {
  double loss = 0;             ///< sum over targets / number of targets, over all ranks
  double grad_norm = 0;        ///< before clipping
  int64_t num_targets = 0;     ///< over all ranks
  bool finite = true;          ///< loss and gradients; if not, nothing was updated
  std::string first_nonfinite; ///< the first layer or gradient that was not finite, if it is known
};

/// A rank's part in training. All ranks call the same functions in the same order.
class Stepper {
 public:
  Stepper(build::RankModel& model, optim::Optimizer& optimizer, build::Groups groups);

  StepResult step(const data::StepData& data, const StepOptions& options);

  /// Mean loss over the targets of all ranks, without dropout.
  struct Evaluation {
    double loss_sum = 0;
    int64_t num_targets = 0;
  };
  Evaluation evaluate(const data::StepData& data);

 private:
  int64_t global_targets(const data::StepData& data) const;

  build::RankModel* model_;
  optim::Optimizer* optimizer_;
  build::Groups groups_;
};

/// A batch as the model takes it.
struct ModelInput {
  at::Tensor ids, labels;
  nn::SequenceLayout layout;
};
ModelInput model_input(const data::Batch& batch, at::Device device);

} // namespace pentatron::trainer
