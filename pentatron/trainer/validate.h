/// The loss and the figures of validation samples during training.
#pragma once

#include <memory>
#include <optional>

#include "pentatron/data/dataset.h"
#include "pentatron/data/loader.h"
#include "pentatron/trainer/config.h"
#include "pentatron/trainer/evaluation.h"
#include "pentatron/trainer/step.h"

namespace pentatron::trainer {

/// Of train.eval_iters batches of `dataset`, or of all of it with dataset.full_validation. None if
/// not one sample has a target. `loading`: as training loads its samples. Collective.
std::optional<Evaluation> validate(Stepper& stepper, const models::ModelSpec& spec,
                                   const Config& config,
                                   const std::shared_ptr<const data::Dataset>& dataset,
                                   data::LoaderOptions loading);

} // namespace pentatron::trainer
