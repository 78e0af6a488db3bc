/// Text from a model: one token after another, each from a full forward pass over the context.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "pentatron/build/parallelize.h"

namespace pentatron::generate {

struct SamplingOptions {
  int64_t max_tokens = 200;
  double temperature = 0.8; ///< 0: always the likeliest token
  int64_t top_k = 0;        ///< 0: all
  double top_p = 0.95;      ///< the smallest set of tokens with this probability
  uint64_t seed = 0;        ///< token i is drawn with Stream(seed, "sample") at i
  int64_t context = 0;      ///< tokens looked back at most; 0: the model's longest sequence
  int64_t stop_token = -1;  ///< ends the text when drawn; -1: none
  int64_t num_tokens = 0;   ///< only tokens below this are drawn; 0: the whole vocabulary
};

/// Throws ConfigError that names the option which is out of range.
void check(const SamplingOptions& options);

/// Index of the drawn token; `u` in [0, 1). Ties go to the lower token. Throws ConfigError if an
/// option is out of range, Error if a logit is NaN or infinite.
int64_t sample_token(std::vector<double> logits, const SamplingOptions& options, double u);

/// Continues `prompt` (not empty). `on_token` sees each new token at once. Throws DataError for a
/// token of the prompt outside the vocabulary.
std::vector<int64_t> generate(build::ModelView model, std::vector<int64_t> prompt,
                              const SamplingOptions& options,
                              const std::function<void(int64_t)>& on_token);

} // namespace pentatron::generate
