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
  /// The weighted sum of the terms that evaluation has, too, and that have targets; none without
  /// targets: then nothing was computed or updated.
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
  bool finite = true;     ///< loss and gradients, of all ranks; if not, nothing was updated
  bool too_large = false; ///< the gradient norm is above the threshold: nothing was updated
  /// The first layer or gradient that was not finite, if it is known, and the rank that saw it.
  std::string first_nonfinite;
};

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

  StepResult step(const data::StepData& data, const StepOptions& options);

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
    int64_t samples = 0;
  };
  Counts global_counts(const data::StepData& data) const;
  /// Lowered; made once for each number of microbatches.
  const pipeline::Schedule& schedule(Use use, size_t num_microbatches);
  std::vector<nn::Microbatch> inputs(const data::StepData& data) const;
  const models::ModelSpec& spec() const { return model_->model->spec(); }
  /// Of each term, from every rank of the last stage, counted once: that of this rank or 0.
  std::vector<double> own_losses(const nn::StepState& state) const;
  /// Whether this rank's figures of the last stage are those that count.
  bool counts_here() const;
  /// By term: weight / denominator, times the loss scale.
  std::map<std::string, double, std::less<>>
  loss_scales(const Counts& counts, const data::StepData& data, double loss_scale) const;
  int64_t denominator(models::AuxiliaryTerm::Per per, const Counts& counts,
                      const data::StepData& data) const;
  /// StepResult::expert_counts, of all ranks.
  at::Tensor expert_counts(const nn::StepState& state) const;
  /// Experts have been chosen so often in a step that changed the model.
  void apply_expert_counts(const at::Tensor& counts);
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

/// A batch as a model of these streams takes it.
nn::Microbatch model_input(const data::Batch& batch, const std::vector<std::string>& streams,
                           at::Device device);

} // namespace pentatron::trainer
