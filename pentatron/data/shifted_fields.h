/// Fields that follow from others: the tokens, positions and labels some places further on, which
/// predictions of several tokens need.
#pragma once

#include <span>

#include "pentatron/data/batch.h"

namespace pentatron::data {

/// Adds them to a batch that still has its padding. A place has the value `places` further on where
/// that lies in the same document and both are no padding; elsewhere 0, or of labels their `none`.
/// A document ends where its sample does, where attention begins anew, and before a position that
/// is not larger than the one before it.
void add_shifted_fields(Batch& batch, std::span<const ShiftedField> fields);

} // namespace pentatron::data
