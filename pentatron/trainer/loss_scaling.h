/// The loss scale of a run, and the steps that do not advance its schedules.
///
/// A step whose gradients overflow lowers a dynamic scale; a constant scale stays. A step that
/// updates nothing (these, one that is not finite, one whose gradient norm is too large, one
/// without targets) does not advance the schedules of learning rate and weight decay; its samples
/// count as consumed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "pentatron/checkpoint/run_checkpoint.h"
#include "pentatron/optim/loss_scale.h"
#include "pentatron/trainer/config.h"
#include "pentatron/trainer/step.h"

namespace pentatron::trainer {

class LossScaling {
 public:
  explicit LossScaling(const MixedPrecisionConfig& config, Precision dtype);

  /// Whether losses are scaled at all.
  bool on() const { return scaler_.has_value(); }
  /// Multiplies the losses of the next backward pass; 1 without a scale.
  double scale() const { return on() ? scaler_->scale() : 1; }
  /// The scale for logs; nothing without a scale.
  std::optional<double> reported() const { return on() ? std::optional(scale()) : std::nullopt; }

  /// Whether the result is not finite and a smaller loss scale may fix it. When the scale is at its
  /// minimum or constant, this is false for a loss that is itself not finite.
  bool overflowed(const StepResult& result) const;
  /// Takes the result of a step, of so many samples, and logs what it changes.
  void after_step(int64_t iteration, const StepResult& result, int64_t samples);

  /// Where the schedules are at an iteration or a number of samples: without the steps that did not
  /// advance them.
  int64_t scheduled_iterations(int64_t iteration) const { return iteration - held_iterations_; }
  int64_t scheduled_samples(int64_t samples) const { return samples - held_samples_; }

  void save(checkpoint::TrainState& state) const;
  /// Goes on from a checkpoint; with a `fresh` scale only the schedules do. Returns a notice, or an
  /// empty text.
  std::string load(const checkpoint::TrainState& state, bool fresh);

 private:
  /// Warns once that gradients overflow again at a scale that does not change.
  void warn(int64_t iteration);

  MixedPrecisionConfig config_;
  std::optional<optim::LossScaler> scaler_;
  int64_t held_iterations_ = 0, held_samples_ = 0;
  int64_t overflows_in_a_row_ = 0;
  bool warned_ = false; ///< that gradients overflow and the scale stays
};

} // namespace pentatron::trainer
