/// The loss of a model that only knows token frequencies, a baseline for a run.
#pragma once

#include "pentatron/data/corpus.h"
#include "pentatron/data/dataset.h"

namespace pentatron::data {

/// The entropy of the tokens of `range`, in nats per token: minus the sum of p log p over their
/// frequencies. 0 for an empty range.
double unigram_entropy(const Corpus& corpus, StreamRange range, int64_t vocab_size);

} // namespace pentatron::data
