#include "pentatron/generate/sampling.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "pentatron/base/error.h"

namespace pentatron::generate {

namespace {

/// Throws Error if a value is not finite.
void check_finite(std::span<const float> values) {
  bool finite = true;
  for (const float x : values) finite = finite && std::isfinite(x);
  if (!finite) throw Error("the output of the model is not finite, so no token can be sampled");
}

/// ln of the sum of e^x.
double log_sum_exp(std::span<const float> values) {
  const float top = *std::max_element(values.begin(), values.end());
  double sum = 0;
  for (const float x : values) sum += std::exp(static_cast<double>(x - top));
  return top + std::log(sum);
}

/// Puts the best candidates of [begin, tokens.size()) into [begin, end), in order: likeliest first,
/// of equals the lower token.
void sort_best(std::vector<int64_t>& tokens, size_t begin, size_t end,
               const std::vector<double>& logits) {
  const auto at = [&](size_t i) { return tokens.begin() + static_cast<std::ptrdiff_t>(i); };
  std::partial_sort(at(begin), at(end), tokens.end(), [&](int64_t a, int64_t b) {
    const double x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  });
}

} // namespace

void check(const Sampling& s) {
  if (!(s.temperature >= 0 && std::isfinite(s.temperature)))
    raise<ConfigError>(
        "--temperature {} is not a number >= 0\n  try: --temperature 0 for the most likely token",
        s.temperature);
  if (!(s.top_p > 0 && s.top_p <= 1))
    raise<ConfigError>("--top-p {} is not in (0, 1]\n  try: --top-p 0.95", s.top_p);
  if (s.top_k < 0)
    raise<ConfigError>("--top-k {} is negative\n  try: --top-k 0 for all tokens", s.top_k);
  if (!(s.min_p >= 0 && s.min_p <= 1))
    raise<ConfigError>("--min-p {} is not in [0, 1]\n  try: --min-p 0.05", s.min_p);
  if (!(s.repetition_penalty > 0 && std::isfinite(s.repetition_penalty)))
    raise<ConfigError>(
        "--repetition-penalty {} is not a positive number\n  try: --repetition-penalty 1 for none",
        s.repetition_penalty);
}

LogProbs::LogProbs(std::span<const float> logits) : logits_(logits) {
  check_finite(logits);
  normalizer_ = log_sum_exp(logits);
}

std::vector<Drawn> LogProbs::top(int64_t count, int64_t num_tokens) const {
  const auto all =
      num_tokens > 0 ? std::min(static_cast<size_t>(num_tokens), logits_.size()) : logits_.size();
  std::vector<int64_t> tokens(all);
  std::iota(tokens.begin(), tokens.end(), 0);
  const auto end =
      tokens.begin() + static_cast<std::ptrdiff_t>(std::min(static_cast<size_t>(count), all));
  std::partial_sort(tokens.begin(), end, tokens.end(), [&](int64_t a, int64_t b) {
    const float x = logits_[static_cast<size_t>(a)], y = logits_[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  });
  std::vector<Drawn> best;
  for (auto token = tokens.begin(); token != end; ++token) best.push_back({*token, of(*token)});
  return best;
}

Drawn sample_token(std::span<const float> given, const Sampling& s, std::span<const int64_t> seen,
                   double u) {
  check(s);
  PT_DCHECK(!given.empty());
  check_finite(given);
  const double normalizer = s.logprob ? log_sum_exp(given) : 0;
  const size_t count =
      s.num_tokens > 0 ? std::min(static_cast<size_t>(s.num_tokens), given.size()) : given.size();
  const auto drawn = [&](int64_t token) {
    return Drawn{token, s.logprob ? given[static_cast<size_t>(token)] - normalizer : 0};
  };
  const auto end = given.begin() + static_cast<std::ptrdiff_t>(count);
  if (s.temperature == 0 && s.repetition_penalty == 1)
    return drawn(std::max_element(given.begin(), end) - given.begin());
  std::vector<double> logits(given.begin(), end);
  if (s.repetition_penalty != 1) {
    for (const int64_t token : seen) {
      if (token < 0 || token >= static_cast<int64_t>(count)) continue;
      const auto at = static_cast<size_t>(token);
      logits[at] =
          given[at] > 0 ? given[at] / s.repetition_penalty : given[at] * s.repetition_penalty;
    }
  }
  // The first of equals is the lowest.
  const auto best = std::max_element(logits.begin(), logits.end());
  if (s.temperature == 0) return drawn(best - logits.begin());
  std::vector<int64_t> tokens;
  std::vector<double> weights(count);
  const double top = *best;
  double total = 0;
  // What is less likely than this is never drawn, whatever its number.
  constexpr double kNever = 1e-30;
  for (size_t i = 0; i < count; ++i) {
    weights[i] = std::exp((logits[i] - top) / s.temperature);
    if (weights[i] < kNever) continue;
    tokens.push_back(static_cast<int64_t>(i));
    total += weights[i];
  }
  const auto weight = [&](size_t i) { return weights[static_cast<size_t>(tokens[i])]; };
  if (s.top_k > 0 && s.top_k < static_cast<int64_t>(tokens.size())) {
    sort_best(tokens, 0, static_cast<size_t>(s.top_k), logits);
    tokens.resize(static_cast<size_t>(s.top_k));
    total = 0;
    for (size_t i = 0; i < tokens.size(); ++i) total += weight(i);
  }
  size_t kept = tokens.size(), sorted = s.top_k > 0 ? tokens.size() : 0;
  double mass = total;
  if (s.top_p < 1 || s.min_p > 0) {
    kept = 0;
    mass = 0;
    while (kept < tokens.size() && (kept == 0 || mass < s.top_p * total)) {
      if (kept == sorted) { // most texts need few candidates
        const size_t more = std::min(tokens.size(), std::max<size_t>(64, 8 * sorted));
        sort_best(tokens, sorted, more, logits);
        sorted = more;
      }
      if (kept > 0 && weight(kept) < s.min_p) break;
      mass += weight(kept++);
    }
  }
  double target = u * mass;
  for (size_t i = 0; i < kept; ++i) {
    target -= weight(i);
    if (target < 0) return drawn(tokens[i]);
  }
  return drawn(tokens[kept - 1]);
}

} // namespace pentatron::generate
