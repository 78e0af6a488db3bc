/// A tokenizer with the special tokens that an objective has added to its vocabulary.
#pragma once

#include <memory>

#include "pentatron/data/config.h"
#include "pentatron/data/tokenizer.h"

namespace pentatron::data {

/// `base` as a model knows it that was trained on such a dataset: tokens above the vocabulary have
/// their names ("[MASK]", "<extra_id_0>") in texts, and encode_with_special() puts around a text
/// what the samples had. Sentinels are written out. `base` itself if it lacks no token.
std::shared_ptr<const Tokenizer> with_objective_tokens(std::shared_ptr<const Tokenizer> base,
                                                       const DatasetConfig& config);

} // namespace pentatron::data
