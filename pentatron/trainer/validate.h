/// The loss and the figures of validation samples during training.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "pentatron/data/dataset.h"
#include "pentatron/data/loader.h"
#include "pentatron/trainer/config.h"
#include "pentatron/trainer/evaluation.h"
#include "pentatron/trainer/step.h"

namespace pentatron::trainer {

/// Of train.eval_iters batches of the validation samples, or of all with dataset.full_validation;
/// the mean where there are several sets of them, whose losses are logged by the main rank. Returns
/// nothing if no sample has a target. `loading`: as training loads its samples. Collective.
std::optional<Evaluation> validate(Stepper& stepper, const models::ModelSpec& spec,
                                   const Config& config, const data::Datasets& datasets,
                                   const data::LoaderOptions& loading, bool main_rank);

/// Calls `look` while the model has the weights of train.eval_weights. Collective.
void with_eval_weights(const Config& config, optim::Optimizer& optimizer,
                       parallel::DataParallel& store, const std::function<void()>& look);

} // namespace pentatron::trainer
