/// The loss scale of fp16 training: a constant, or a dynamic scale that is lowered when gradients
/// overflow and raised after steps without overflow.
///
/// A step with an overflow sets the count of clean steps to 0 and takes 1 from the patience; at 0
/// or below, scale = max(scale * backoff, min). A clean step is counted; the `window`-th in a row
/// sets the count to 0, refills the patience and grows the scale, unless the result is not finite.
/// With hysteresis 1 and min 0 this is the rule of torch.amp.GradScaler. The scale is fp32, as in
/// both. Free of LibTorch. Source: megatron-core optimizer/grad_scaler.py,
/// torch/amp/grad_scaler.py; Micikevicius et al. 2018 (arXiv:1710.03740) sec. 3.2.
#pragma once

#include <cstdint>

namespace pentatron::optim {

struct LossScaleRule {
  bool dynamic = true; ///< false: the scale stays `initial`
  double initial = 4294967296.0;
  double growth_factor = 2;
  double backoff_factor = 0.5;
  double min = 1;
  int64_t window = 1000;
  int64_t hysteresis = 2;
};

/// What changes from step to step; state of a run.
struct LossScaleState {
  double scale = 1;
  int64_t growth_tracker = 0;     ///< clean steps in a row
  int64_t hysteresis_tracker = 0; ///< overflows until the scale is lowered; below 0: at each one
  bool operator==(const LossScaleState&) const = default;
};

class LossScaler {
 public:
  explicit LossScaler(const LossScaleRule& rule);

  /// Multiplies the loss of the next backward pass.
  double scale() const { return state_.scale; }
  bool dynamic() const { return rule_.dynamic; }
  /// Whether another overflow can no longer change the scale.
  bool exhausted() const;
  /// The step that used the scale had gradients that are not finite, on some rank.
  void update(bool found_inf);

  const LossScaleState& state() const { return state_; }
  void set_state(const LossScaleState& state) { state_ = state; }

 private:
  LossScaleRule rule_;
  LossScaleState state_;
};

} // namespace pentatron::optim
