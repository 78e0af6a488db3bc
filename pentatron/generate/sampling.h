/// Samples a token from logits.
///
/// In this order, as Hugging Face does: repetition penalty (Keskar et al. 2019, arXiv:1909.05858),
/// temperature, top-k (Fan et al. 2018, arXiv:1805.04833), top-p (Holtzman et al. 2020,
/// arXiv:1904.09751), min-p (Nguyen et al. 2024, arXiv:2407.01082).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace pentatron::generate {

struct Sampling {
  double temperature = 0.8;      ///< 0: always the likeliest token
  int64_t top_k = 0;             ///< 0: all
  double top_p = 0.95;           ///< the smallest set of tokens with this probability
  double min_p = 0;              ///< tokens at least so likely, as a share of the likeliest one
  double repetition_penalty = 1; ///< divides logits above 0 of tokens seen, multiplies those below
  int64_t num_tokens = 0;        ///< only tokens below this are drawn; 0: the whole vocabulary
  bool logprob = true;           ///< Drawn::logprob is wanted; false saves its computation
};

/// Throws ConfigError that names the option which is out of range.
void check(const Sampling& sampling);

struct Drawn {
  int64_t token = 0;
  double logprob = 0; ///< ln of the token's probability under the model itself, before all options
};

/// ln p of tokens under the model itself.
class LogProbs {
 public:
  /// `logits` must outlive it. Throws Error if one is NaN or infinite.
  explicit LogProbs(std::span<const float> logits);
  double of(int64_t token) const { return logits_[static_cast<size_t>(token)] - normalizer_; }
  /// The `count` likeliest tokens below `num_tokens` (0: of all), in order; of equals the lower
  /// token comes first.
  std::vector<Drawn> top(int64_t count, int64_t num_tokens = 0) const;

 private:
  std::span<const float> logits_;
  double normalizer_ = 0;
};

/// `seen`: tokens that the repetition penalty counts, any number of times each; `u` in [0, 1). Ties
/// go to the lower token. Throws ConfigError if an option is out of range, Error if a logit is NaN
/// or infinite.
Drawn sample_token(std::span<const float> logits, const Sampling& sampling,
                   std::span<const int64_t> seen, double u);

} // namespace pentatron::generate
