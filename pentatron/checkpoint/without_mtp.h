/// A model without its layers of multi-token prediction, which only training uses.
#pragma once

#include <memory>

#include "pentatron/checkpoint/model_source.h"

namespace pentatron::checkpoint {

/// `model` must outlive the result.
std::unique_ptr<ModelSource> without_mtp(ModelSource& model);

} // namespace pentatron::checkpoint
