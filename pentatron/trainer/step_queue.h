/// Makes the steps of a run. On a GPU, losses and norms stay there: the device decides whether it
/// updates the weights, and the host reads the figures of several steps together. On a CPU, and
/// where the host needs a step's figures before the next one (docs/gpu.md), it reads every step's.
#pragma once

#include <cstdint>
#include <vector>

#include "pentatron/data/loader.h"
#include "pentatron/trainer/delayed_scales.h"
#include "pentatron/trainer/loss_scaling.h"
#include "pentatron/trainer/step.h"

namespace pentatron::trainer {

struct MadeStep {
  int64_t iteration = 0;
  int64_t consumed_samples = 0; ///< of the run so far
  int64_t samples = 0;          ///< of this step
  double data_wait = 0;         ///< Loader::wait_share()
  double time_s = 0;            ///< of several that are read together: their mean
  StepOptions options;
  StepResult result;
};

/// All ranks call the same functions in the same order.
class StepQueue {
 public:
  /// `late`: read several steps together where that is possible. Collective over the world.
  StepQueue(Stepper& stepper, data::Loader& loader, DelayedScales& scales,
            const LossScaling& scaling, comm::Group world, bool late);

  /// Makes a step, or queues it on the device.
  void make(int64_t iteration, const StepOptions& options);
  /// Whether the host has to take() before the next step: it reads each, or the last one had no
  /// targets, so that it holds the schedules.
  bool has_to_take() const {
    return !late_ || (!queued_.empty() && !queued_.back().step.figures.defined());
  }
  /// The steps since the last call, in order, with their results: one read for all of them.
  std::vector<MadeStep> take();

 private:
  struct Queued {
    MadeStep made;
    QueuedStep step;
    data::StepData data; // to look for what was not finite
  };
  StepResult step_now(const data::StepData& data, const StepOptions& options);
  void name_nonfinite(const Queued& queued, StepResult& result);

  Stepper* stepper_;
  data::Loader* loader_;
  DelayedScales* scales_;
  const LossScaling* scaling_;
  comm::Group world_;
  bool late_;
  double begin_s_ = 0; // of the first step that was not taken
  std::vector<Queued> queued_;
  std::vector<MadeStep> made_; // whose results are known
};

} // namespace pentatron::trainer
