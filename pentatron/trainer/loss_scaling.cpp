#include "pentatron/trainer/loss_scaling.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "pentatron/base/log.h"

namespace pentatron::trainer {

namespace {

std::optional<optim::LossScaler> make_scaler(const MixedPrecisionConfig& c, Precision dtype) {
  if (c.loss_scale) return optim::LossScaler({.dynamic = false, .initial = *c.loss_scale});
  if (dtype != Precision::kFp16) return std::nullopt;
  return optim::LossScaler({.initial = c.initial_loss_scale,
                            .min = c.min_loss_scale,
                            .window = c.loss_scale_window,
                            .hysteresis = c.hysteresis});
}

} // namespace

LossScaling::LossScaling(const MixedPrecisionConfig& config, Precision dtype)
    : config_(config), scaler_(make_scaler(config, dtype)) {}

bool LossScaling::overflowed(const StepResult& result) const {
  if (result.finite || !on()) return false;
  return losses_are_finite(result) || (scaler_->dynamic() && !scaler_->exhausted());
}

void LossScaling::after_step(int64_t iteration, const StepResult& result, int64_t samples) {
  if (!result.updated()) {
    ++held_iterations_;
    held_samples_ += samples;
  }
  if (!on() || !result.computed || (!result.finite && !overflowed(result))) return;
  overflows_in_a_row_ = result.finite ? 0 : overflows_in_a_row_ + 1;
  const double used = scale();
  scaler_->update(!result.finite);
  if (result.finite) return;
  log::info("skipped iteration {}: {} not finite at loss scale {:g}; {} {:g}", iteration,
            losses_are_finite(result) ? "gradients are" : "the loss is", used,
            scale() < used ? "the next one is" : "it stays", scale());
  if (scaler_->dynamic() ? scaler_->exhausted() && scale() == used : overflows_in_a_row_ > 1)
    warn(iteration);
}

void LossScaling::warn(int64_t iteration) {
  if (warned_) return;
  warned_ = true;
  if (!scaler_->dynamic())
    return log::shared_warning(
        "iteration {}: gradients overflow again at the constant loss scale, "
        "mixed_precision.loss_scale={:g}\n  try: "
        "mixed_precision.loss_scale={:g}, or remove "
        "mixed_precision.loss_scale, so that fp16 has a dynamic one",
        iteration, *config_.loss_scale,
        std::max(std::min(*config_.loss_scale / 16, 1024.0), kLeastLossScale));
  log::shared_warning("iteration {}: gradients still overflow at the smallest loss scale, "
                      "mixed_precision.min_loss_scale={:g}\n  try: "
                      "mixed_precision.min_loss_scale={:g}",
                      iteration, config_.min_loss_scale,
                      std::max(config_.min_loss_scale / 65536, kLeastLossScale));
}

void LossScaling::save(checkpoint::TrainState& state) const {
  state.loss_scale = on() && scaler_->dynamic() ? std::optional(scaler_->state()) : std::nullopt;
  state.held_iterations = held_iterations_;
  state.held_samples = held_samples_;
}

std::string LossScaling::load(const checkpoint::TrainState& state, bool fresh) {
  held_iterations_ = state.held_iterations;
  held_samples_ = state.held_samples;
  overflows_in_a_row_ = 0;
  warned_ = false;
  scaler_ = on() && scaler_->dynamic() ? make_scaler(config_, Precision::kFp16) : scaler_;
  if (!on() || !scaler_->dynamic() || fresh) return {};
  if (!state.loss_scale)
    return fmt::format("the checkpoint contains no dynamic loss scale, so it starts at "
                       "mixed_precision.initial_loss_scale={:g}",
                       config_.initial_loss_scale);
  scaler_->set_state(*state.loss_scale);
  return {};
}

} // namespace pentatron::trainer
