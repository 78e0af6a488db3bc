/// One optimizer step: forward and backward of every microbatch through the pipeline, reductions,
/// norm, clipping, update.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "pentatron/data/loader.h"
#include "pentatron/optim/optimizer.h"
#include "pentatron/parallel/pipeline/runtime.h"
#include "pentatron/parallelize/parallelize.h"
#include "pentatron/trainer/evaluation.h"
#include "pentatron/trainer/qk_clip.h"
#include "pentatron/trainer/step_inputs.h"

namespace pentatron::trainer {

/// Something between the passes: reductions, norm, update. In seconds of monotonic_s().
struct Phase {
  const char* name = nullptr;
  double start_s = 0, end_s = 0;
};

/// What this rank did when.
struct StepTimes {
  std::vector<pipeline::Interval> passes;
  std::vector<Phase> phases;
};

struct StepOptions {
  double lr = 0;
  double weight_decay = 0;
  double clip_grad = 0;
  double grad_norm_skip_threshold = 0; ///< 0: none
  double loss_scale = 1;               ///< of the backward pass; gradients are divided by it
  bool check_copies = false; ///< look for gradients that are not finite in every copy of them
  uint64_t seed = 0;
  bool find_nonfinite_layer =
      false; ///< look at the output of every layer, to name the first that is not finite
  StepTimes* times = nullptr; ///< to be filled
};

/// Equal on all ranks.
struct StepResult {
  bool computed = false; ///< some term has targets; if not, nothing was updated
  /// The weighted sum of the terms that evaluation has, too; none if one of them has no target.
  std::optional<double> loss;
  /// Of each of the model's terms: sum over targets / number of targets, over all ranks; none
  /// without targets.
  std::vector<std::optional<double>> terms;
  /// Of each of its auxiliary terms, the mean of the layers that have it; none if the step has
  /// none.
  std::vector<std::optional<double>> auxiliary;
  /// [layers with experts, E + 1] int64: how many tokens chose each expert, and how many of these
  /// choices were dropped. Undefined: no experts.
  at::Tensor expert_counts;
  std::optional<double> grad_norm;        ///< before clipping; none without targets
  AttentionLogits logits;                 ///< where they are measured
  std::vector<data::StreamTotals> totals; ///< of the samples of all ranks, by stream
  HeadRows head_rows = {};                ///< of the same
  bool finite = true;     ///< loss and gradients, of all ranks; if not, nothing was updated
  bool too_large = false; ///< the gradient norm is above the threshold: nothing was updated
  /// The first layer or gradient that was not finite, if it is known, and the rank that saw it.
  std::string first_nonfinite;

  /// If not, the step was skipped.
  bool updated() const { return computed && finite && !too_large; }
};

/// A step that was made or queued, with figures that are still on the device.
struct QueuedStep {
  /// What the host knows: targets of each term, denominators of each auxiliary term, totals.
  std::vector<int64_t> targets, auxiliary;
  std::vector<data::StreamTotals> totals;
  HeadRows head_rows = {};
  double loss_scale = 1;
  bool global_balance = true; ///< the global balance loss has a value
  /// [n] double of all ranks: sums of the terms, of the auxiliary terms, whether copies of
  /// gradients are not finite, the sum of squared gradients, expert counts; of a queued step also
  /// whether its numbers were finite, and whether its norm was too large. Undefined: no targets.
  at::Tensor figures;
  at::Tensor expert_counts; ///< StepResult::expert_counts on the device
  bool decided = false;     ///< it was queued
};

/// Whether every loss is finite.
bool losses_are_finite(const StepResult& result);
/// "loss nan and gradient norm inf are not finite, first seen in layers.0", of a step that was not.
std::string nonfinite_text(const StepResult& result);
/// Why a step whose numbers are finite updated nothing: "its batch has no targets".
std::string skip_text(const StepResult& result, const StepOptions& options);

/// By layer with experts: how often each was chosen.
using ExpertChoices = std::map<std::string, std::vector<int64_t>, std::less<>>;

/// A rank's part in training. All ranks call the same functions in the same order.
class Stepper {
 public:
  Stepper(parallelize::TrainingModel& model, optim::Optimizer& optimizer,
          comm::ParallelGroups groups, parallelize::PipelinePlan plan,
          const QkClipOptions& clip = {});

  /// Makes a step and reads its figures before the update: one read on the host.
  StepResult step(const data::StepData& data, const StepOptions& options);

  /// Whether the device can decide about an update: not if the optimizer, qk-clip, the global
  /// balance loss, or products in low precision need the host.
  bool can_queue() const;
  /// The same step without a read: read() gives its result later. `find_nonfinite_layer` and
  /// `check_copies` are not possible.
  QueuedStep queue(const data::StepData& data, const StepOptions& options);
  /// The results of steps in their order, with one read for all of them.
  std::vector<StepResult> read(const std::vector<QueuedStep>& steps) const;

  /// Without dropout.
  EvaluationSums evaluate(const data::StepData& data);

  /// How often each expert was chosen in the last step that changed the model, by layer; state of a
  /// run whose steps depend on it, else empty.
  ExpertChoices expert_choices() const;
  void set_expert_choices(const ExpertChoices& choices);

 private:
  enum class Use : uint8_t { kTraining, kEvaluation };

  /// Over the data-parallel ranks.
  struct Counts {
    std::vector<int64_t> targets;           ///< of each loss term
    std::vector<data::StreamTotals> totals; ///< of each stream
    HeadRows head_rows = {};
    int64_t samples = 0;
  };
  Counts global_counts(const data::StepData& data) const;
  /// Lowered; made once for each number of microbatches.
  const pipeline::Schedule& schedule(Use use, size_t num_microbatches);
  std::vector<nn::Microbatch> inputs(const data::StepData& data) const;
  const models::ModelSpec& spec() const { return model_->model->spec(); }
  /// Forward and backward passes, and the sums of all ranks.
  QueuedStep passes(const data::StepData& data, const StepOptions& options, nn::StepState& state);
  /// QueuedStep::figures. Collective over the world.
  at::Tensor gathered_figures(const nn::StepState& state, const StepOptions& options,
                              const at::Tensor& expert_counts) const;
  StepResult result_of(const QueuedStep& step, const double* figures) const;
  /// Of each term, from every rank of the last stage, counted once: that of this rank or 0.
  std::vector<at::Tensor> own_losses(const nn::StepState& state) const;
  /// Whether this rank's figures of the last stage are those that count.
  bool counts_here() const;
  /// By term: weight / denominator, times the loss scale.
  std::map<std::string, double, std::less<>>
  loss_scales(const Counts& counts, const data::StepData& data, double loss_scale) const;
  int64_t denominator(models::AuxiliaryTerm::Per per, const Counts& counts,
                      const data::StepData& data) const;
  /// StepResult::expert_counts, of all ranks.
  at::Tensor expert_counts(const nn::StepState& state) const;
  /// Experts have been chosen so often in a step that changed the model, or that may have: `apply`
  /// (0-dim int64) is 0 if it has not. Undefined: it has.
  void apply_expert_counts(const at::Tensor& counts, const at::Tensor& apply = {});
  /// Whether the choices of a step are state of the run.
  bool remembers_choices() const;
  /// Of all ranks.
  std::vector<Prediction> gathered_predictions(const nn::StepState& state) const;
  /// The first rank's name that is not empty, with that rank where there are several.
  std::string shared_name(const std::string& here) const;

  parallelize::TrainingModel* model_;
  optim::Optimizer* optimizer_;
  comm::ParallelGroups groups_;
  parallelize::PipelinePlan plan_;
  pipeline::Runtime runtime_;
  QkClip clip_;
  std::map<std::pair<Use, size_t>, pipeline::Schedule> schedules_;
  nn::GradientRows gradient_rows_;
  ExpertChoices expert_choices_;
  nn::ExpertLoads expert_loads_; ///< of these
};

} // namespace pentatron::trainer
