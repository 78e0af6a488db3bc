/// A trained model on a rank.
#pragma once

#include "pentatron/checkpoint/model_source.h"
#include "pentatron/parallelize/parallelize.h"

namespace pentatron::parallelize {

/// What make_model() gives, with the values of `source`, without layers of multi-token prediction,
/// which training alone uses. Without gradients and on the CPU, values
/// that the rank needs as the files have them stay there: processes share them, and nothing is
/// copied. Throws what ModelSource::load() does.
RankModel load_model(checkpoint::ModelSource& source, ModelOptions options,
                     const comm::ParallelGroups& groups = {}, const PipelinePlan& plan = {});

} // namespace pentatron::parallelize
