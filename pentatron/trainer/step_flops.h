/// The work of a step, for MFU.
#pragma once

#include <memory>
#include <vector>

#include "pentatron/data/loader.h"
#include "pentatron/models/model.h"
#include "pentatron/trainer/config.h"
#include "pentatron/trainer/step_inputs.h"

namespace pentatron::trainer {

/// Of one optimizer step over all ranks: matrix products forward and backward, and of attention the
/// causal half of every document's square that a window leaves (nn/cost.h). `model` counts the real
/// tokens, `hardware` recomputation and the products of padding too. Neither counts what no rank
/// computes: logits that the losses leave out, gradients of frozen weights and of what depends on
/// no trained weight. 0 of a step that was skipped for want of targets.
struct StepFlops {
  double model = 0;
  double hardware = 0;
};

/// Counts the steps of a run; the products of adapters do not count. The arguments must outlive it.
class FlopCounter {
 public:
  /// `stages`: of the pipeline.
  FlopCounter(const Config& config, const models::Model& model, int64_t stages);

  /// Of `samples` on all ranks; `totals` of each of the model's streams. Cross-attention takes the
  /// samples' lengths as equal.
  StepFlops step(int64_t samples, const std::vector<data::StreamTotals>& totals,
                 const HeadRows& rows) const;

 private:
  /// What backward leaves out in a segment that has a backward pass.
  struct LeftOut {
    std::vector<const nn::Param*> weights; ///< whose gradients are not made
    bool input = false, memory = false;    ///< gradients of Cost::input_gemm_flops and the other
  };
  double left_out(int64_t segment, const nn::Cost& cost, const nn::LayerShape& shape) const;

  const Config* config_;
  const models::Model* model_;
  int64_t stages_;
  std::unique_ptr<const models::Model> whole_; ///< on one rank, without storage; null: all trains
  std::vector<LeftOut> left_out_;              ///< by segment
};

} // namespace pentatron::trainer
