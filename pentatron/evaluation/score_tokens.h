/// Log-likelihoods of tokens under a model.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "pentatron/comm/group.h"
#include "pentatron/parallelize/parallelize.h"

namespace pentatron::evaluation {

/// A sequence whose last `predicted` tokens are predicted from those before them. At least one
/// token is not.
struct ScoredTokens {
  std::vector<int64_t> tokens;
  int64_t predicted = 0;
};

struct TokenScore {
  double loglikelihood = 0; ///< sum of ln p over the predicted tokens
  bool greedy = false;      ///< each of them is the likeliest one
};

struct ScoringOptions {
  int64_t batch_tokens = 2048; ///< at most, of the sequences that run at the same time, unless one
                               ///< alone has more
  comm::Group dp;              ///< ranks with copies of the model, which share the work
  std::function<void(int64_t sequences)> done; ///< called as they are finished
};

/// The scores in order. Sequences run from the longest to the shortest, packed without padding;
/// those that differ in the last token alone are read once.
/// All ranks of the model and of `dp` call this with the same arguments, and all return the scores.
/// Throws DataError for a token outside the model's vocabulary.
std::vector<TokenScore> score_tokens(parallelize::ModelView model,
                                     const std::vector<ScoredTokens>& sequences,
                                     const ScoringOptions& options);

} // namespace pentatron::evaluation
