/// A training run, as started by the commands train and finetune.
#pragma once

#include <functional>

#include "pentatron/cli/ranks.h"
#include "pentatron/trainer/config.h"
#include "pentatron/trainer/train.h"

namespace pentatron::cli {

/// Shows what the run needs and trains on its ranks, or with `dry_run` only checks it. `after`: on
/// the first rank, at the end of a run that was not stopped. Returns the exit status.
int train_on_ranks(const trainer::Config& config, Ranks& ranks, bool dry_run,
                   const std::function<void(const trainer::TrainReport&)>& after = {});

} // namespace pentatron::cli
