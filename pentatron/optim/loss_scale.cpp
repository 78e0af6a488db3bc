#include "pentatron/optim/loss_scale.h"

#include <algorithm>
#include <cmath>

namespace pentatron::optim {

namespace {

double rounded(double scale) {
  return static_cast<double>(static_cast<float>(scale));
}

} // namespace

LossScaler::LossScaler(const LossScaleRule& rule)
    : rule_(rule), state_{.scale = rounded(rule.initial), .hysteresis_tracker = rule.hysteresis} {}

bool LossScaler::exhausted() const {
  return rule_.dynamic && state_.scale <= rule_.min && state_.hysteresis_tracker <= 0;
}

void LossScaler::update(bool found_inf) {
  if (!rule_.dynamic) return;
  if (found_inf) {
    state_.growth_tracker = 0;
    if (--state_.hysteresis_tracker <= 0)
      state_.scale = std::max(rounded(state_.scale * rule_.backoff_factor), rounded(rule_.min));
    return;
  }
  if (++state_.growth_tracker < rule_.window) return;
  state_.growth_tracker = 0;
  state_.hysteresis_tracker = rule_.hysteresis;
  const double grown = rounded(state_.scale * rule_.growth_factor);
  if (std::isfinite(grown)) state_.scale = grown;
}

} // namespace pentatron::optim
