#include "pentatron/data/objectives/masking.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "pentatron/base/error.h"

namespace pentatron::data {

namespace {

/// Fisher-Yates.
template <class T> void shuffle(std::vector<T>& values, Draws& draws) {
  for (size_t i = values.size(); i > 1; --i) std::swap(values[i - 1], values[draws.below(i)]);
}

struct NoiseCounts {
  int64_t tokens = 0;
  int64_t spans = 0;
};

NoiseCounts noise_counts(int64_t length, double density, double mean_length) {
  const int64_t tokens = std::clamp<int64_t>(std::llround(static_cast<double>(length) * density), 1,
                                             std::max<int64_t>(length - 1, 1));
  const int64_t spans =
      std::clamp<int64_t>(std::llround(static_cast<double>(tokens) / mean_length), 1,
                          std::max<int64_t>(std::min(tokens, length - tokens), 1));
  return {tokens, spans};
}

} // namespace

std::vector<MaskedToken> mask_words(std::span<int64_t> tokens, const MaskOptions& options,
                                    Draws& draws) {
  std::vector<std::vector<int64_t>> words;
  int64_t candidates = 0;
  bool open = false; // the token before can be continued
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (options.is_special && options.is_special(tokens[i])) {
      open = false;
      continue;
    }
    if (!open || !options.continues_word || !options.continues_word(tokens[i]))
      words.emplace_back();
    words.back().push_back(static_cast<int64_t>(i));
    ++candidates;
    open = true;
  }
  const auto wanted = std::llround(static_cast<double>(candidates) * options.rate);
  const int64_t limit = std::min<int64_t>(options.max_masked, std::max<long long>(1, wanted));
  shuffle(words, draws);
  std::vector<MaskedToken> masked;
  for (const std::vector<int64_t>& word : words) {
    if (static_cast<int64_t>(masked.size() + word.size()) > limit) continue;
    for (const int64_t position : word) {
      int64_t& token = tokens[static_cast<size_t>(position)];
      masked.push_back({position, token});
      const double kind = draws.uniform();
      if (kind < options.mask_share) {
        token = options.mask_token;
      } else if (kind < options.mask_share + options.random_share) {
        token = static_cast<int64_t>(draws.below(static_cast<uint64_t>(options.vocab_size)));
      }
    }
  }
  std::sort(masked.begin(), masked.end(),
            [](const MaskedToken& a, const MaskedToken& b) { return a.position < b.position; });
  return masked;
}

std::vector<int64_t> random_partition(int64_t total, int64_t count, Draws& draws) {
  PT_DCHECK(count >= 1 && total >= count);
  // count - 1 of the total - 1 places between items, by selection sampling (Knuth 3.4.2 S).
  std::vector<int64_t> lengths;
  int64_t needed = count - 1;
  int64_t begin = 0;
  for (int64_t place = 1; needed > 0; ++place) {
    if (static_cast<int64_t>(draws.below(static_cast<uint64_t>(total - place))) < needed) {
      lengths.push_back(place - begin);
      begin = place;
      --needed;
    }
  }
  lengths.push_back(total - begin);
  return lengths;
}

std::vector<Span> noise_spans(int64_t length, double density, double mean_length, Draws& draws) {
  if (length < 2) return {};
  const NoiseCounts noise = noise_counts(length, density, mean_length);
  const std::vector<int64_t> noisy = random_partition(noise.tokens, noise.spans, draws);
  const std::vector<int64_t> plain = random_partition(length - noise.tokens, noise.spans, draws);
  std::vector<Span> spans;
  int64_t at = 0;
  for (size_t i = 0; i < noisy.size(); ++i) {
    at += plain[i];
    spans.push_back({at, at + noisy[i]});
    at += noisy[i];
  }
  return spans;
}

int64_t raw_length_for(int64_t input_length, int64_t target_length, double density,
                       double mean_length) {
  int64_t best = 1;
  for (int64_t length = 2; length <= 2 * (input_length + target_length); ++length) {
    const NoiseCounts noise = noise_counts(length, density, mean_length);
    const int64_t input = length - noise.tokens + noise.spans + 1;
    const int64_t target = noise.tokens + noise.spans + 1;
    if (input <= input_length && target <= target_length) best = length;
  }
  return best;
}

} // namespace pentatron::data
