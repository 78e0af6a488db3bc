/// Removes the padding from a batch, so the model does not compute it.
#pragma once

#include <cstdint>

#include "pentatron/data/batch.h"

namespace pentatron::data {

/// Removes the padding behind the real tokens of each sample, in every stream: of its fields, its
/// positions and its pieces. The tokens that are left are what they were: the same ids, positions
/// and places in their samples. Three kinds of padding stay, and remain padding: that before real
/// tokens, a token with a target and what lies before it, and at the end of the first samples as
/// many tokens as make the number of tokens a multiple of `multiple` (if there are as many).
/// `of_sample` > 1: each sample is left with a multiple of it, which is not 0, or with all tokens.
void remove_padding(Batch& batch, int64_t multiple = 1, int64_t of_sample = 1);

} // namespace pentatron::data
