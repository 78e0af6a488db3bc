/// Tokens of datasets for the data tests: a batch of them, and those behind the fields.
#pragma once

#include <memory>
#include <span>

#include "pentatron/data/batch.h"
#include "pentatron/data/token_samples.h"

namespace pentatron::data {

inline Batch token_batch(const TokenDataset& tokens, std::span<const int64_t> ids,
                         const TokenSamples::Options& options = {}) {
  const std::shared_ptr<const TokenDataset> borrowed(std::shared_ptr<const void>(), &tokens);
  return make_batch(TokenSamples(borrowed, options), ids);
}

inline const TokenDataset& tokens_of(const Dataset& dataset) {
  return dynamic_cast<const TokenSamples&>(dataset).tokens();
}

} // namespace pentatron::data
