#include "pentatron/trainer/step_queue.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "pentatron/base/format.h"
#include "pentatron/comm/collectives.h"

namespace pentatron::trainer {

/// Whether it holds on every rank: a stage may have no parameter whose rule needs the host.
static bool on_all(bool here, const comm::Group& world) {
  const at::Tensor lacking = at::full({1}, here ? 0 : 1, at::kLong);
  comm::all_reduce_(lacking, comm::ReduceOp::kMax, world);
  return *lacking.const_data_ptr<int64_t>() == 0;
}

StepQueue::StepQueue(Stepper& stepper, data::Loader& loader, DelayedScales& scales,
                     const LossScaling& scaling, comm::Group world, bool late)
    : stepper_(&stepper), loader_(&loader), scales_(&scales), scaling_(&scaling),
      world_(std::move(world)),
      late_(on_all(late && stepper.can_queue() && !scaling.on(), world_)) {}

void StepQueue::make(int64_t iteration, const StepOptions& options) {
  const double begin = monotonic_s();
  if (queued_.empty() && made_.empty()) begin_s_ = begin;
  data::StepData data = loader_->next();
  if (options.times != nullptr) options.times->phases.push_back({"data", begin, monotonic_s()});
  MadeStep made{.iteration = iteration,
                .consumed_samples = loader_->consumed_samples(),
                .samples = data.global_batch_size,
                .options = options};
  if (late_) {
    QueuedStep step = stepper_->queue(data, options);
    made.data_wait = loader_->wait_share();
    queued_.push_back({std::move(made), std::move(step), std::move(data)});
    return;
  }
  made.result = step_now(data, options);
  made.data_wait = loader_->wait_share();
  made_.push_back(std::move(made));
}

StepResult StepQueue::step_now(const data::StepData& data, const StepOptions& options) {
  scales_->begin_step();
  StepResult result = stepper_->step(data, options);
  if (!result.finite && !scaling_->overflowed(result)) {
    // Nothing was updated, so the same step again gives the same numbers: this time every layer is
    // looked at.
    StepOptions search = options;
    search.find_nonfinite_layer = true;
    search.times = nullptr;
    result = stepper_->step(data, search);
  }
  if (result.computed) scales_->end_step(world_);
  return result;
}

void StepQueue::name_nonfinite(const Queued& queued, StepResult& result) {
  StepOptions search = queued.made.options;
  search.find_nonfinite_layer = true;
  search.times = nullptr;
  result.first_nonfinite = stepper_->step(queued.data, search).first_nonfinite;
}

std::vector<MadeStep> StepQueue::take() {
  std::vector<MadeStep> all = std::exchange(made_, {});
  std::vector<QueuedStep> steps;
  for (Queued& queued : queued_) steps.push_back(std::move(queued.step));
  const std::vector<StepResult> results = stepper_->read(steps);
  for (size_t i = 0; i < queued_.size(); ++i) {
    all.push_back(queued_[i].made);
    all.back().result = results[i];
    // The weights are still those of this step only if no later one has changed them.
    if (!results[i].finite &&
        std::none_of(results.begin() + static_cast<std::ptrdiff_t>(i) + 1, results.end(),
                     [](const StepResult& later) { return later.updated(); }))
      name_nonfinite(queued_[i], all.back().result);
  }
  queued_.clear();
  const double time =
      all.empty() ? 0 : (monotonic_s() - begin_s_) / static_cast<double>(all.size());
  for (MadeStep& made : all) made.time_s = time;
  return all;
}

} // namespace pentatron::trainer
