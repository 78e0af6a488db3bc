/// Fields that follow from others: the tokens, positions and labels some places further on, which
/// predictions of several tokens need.
#pragma once

#include <span>

#include "pentatron/data/batch.h"

namespace pentatron::data {

/// Adds them to a batch that still has its padding. Each position gets the value that is `places`
/// later if both are in the same document and neither is padding; otherwise 0 or, for labels, their
/// `none`. A document ends at the end of its sample, at a boundary of attention, and before a
/// position that is not larger than the previous one.
void add_shifted_fields(Batch& batch, std::span<const ShiftedField> fields);

} // namespace pentatron::data
