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

/// Tokens [begin, end) of a sample.
struct Word {
  int64_t begin = 0, end = 0;
};

std::vector<Word> words_of(std::span<const int64_t> tokens, const MaskOptions& options) {
  std::vector<Word> words;
  bool open = false; // the token before can be continued
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (options.is_special && options.is_special(tokens[i])) {
      open = false;
      continue;
    }
    const auto place = static_cast<int64_t>(i);
    if (!open || !options.continues_word || !options.continues_word(tokens[i]))
      words.push_back({place, place});
    words.back().end = place + 1;
    open = true;
  }
  return words;
}

/// How many words to mask together: n in proportion to 1 / n.
int64_t draw_ngram(int64_t max_ngram, Draws& draws) {
  if (max_ngram <= 1) return 1;
  double sum = 0;
  for (int64_t n = 1; n <= max_ngram; ++n) sum += 1 / static_cast<double>(n);
  double rest = draws.uniform() * sum;
  int64_t n = 1;
  for (; n < max_ngram; ++n) {
    rest -= 1 / static_cast<double>(n);
    if (rest < 0) break;
  }
  return n;
}

/// Masks one token, or puts a random one in its place, or leaves it.
MaskedToken mask_token(std::span<int64_t> tokens, int64_t position, const MaskOptions& options,
                       Draws& draws) {
  int64_t& token = tokens[static_cast<size_t>(position)];
  const MaskedToken masked{position, token};
  const double kind = draws.uniform();
  if (kind < options.mask_share) {
    token = options.mask_token;
  } else if (kind < options.mask_share + options.random_share) {
    token = static_cast<int64_t>(draws.below(static_cast<uint64_t>(options.vocab_size)));
  }
  return masked;
}

} // namespace

std::vector<MaskedToken> mask_words(std::span<int64_t> tokens, const MaskOptions& options,
                                    Draws& draws) {
  const std::vector<Word> words = words_of(tokens, options);
  int64_t candidates = 0;
  for (const Word& word : words) candidates += word.end - word.begin;
  const auto wanted = std::llround(static_cast<double>(candidates) * options.rate);
  const int64_t limit = std::min<int64_t>(options.max_masked, std::max<long long>(1, wanted));
  std::vector<size_t> order(words.size());
  std::iota(order.begin(), order.end(), size_t{0});
  shuffle(order, draws);
  std::vector<uint8_t> taken(words.size());
  std::vector<MaskedToken> masked;
  for (const size_t first : order) {
    if (std::ssize(masked) >= limit) break;
    const int64_t ngram = draw_ngram(options.max_ngram, draws);
    // Words of one text that touch, while there is room.
    size_t last = first;
    while (last < words.size() &&
           std::ssize(masked) + words[last].end - words[first].begin <= limit &&
           static_cast<int64_t>(last - first) < ngram && taken[last] == 0 &&
           (last == first || words[last].begin == words[last - 1].end))
      ++last;
    for (size_t w = first; w < last; ++w) {
      taken[w] = 1;
      for (int64_t p = words[w].begin; p < words[w].end; ++p)
        masked.push_back(mask_token(tokens, p, options, draws));
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

NoiseCounts noise_counts(int64_t length, double density, double mean_length) {
  const int64_t tokens = std::clamp<int64_t>(std::llround(static_cast<double>(length) * density), 1,
                                             std::max<int64_t>(length - 1, 1));
  const int64_t spans =
      std::clamp<int64_t>(std::llround(static_cast<double>(tokens) / mean_length), 1,
                          std::max<int64_t>(std::min(tokens, length - tokens), 1));
  return {tokens, spans};
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

int64_t target_length_of(int64_t raw_length, double density, double mean_length) {
  const NoiseCounts noise = noise_counts(raw_length, density, mean_length);
  return noise.tokens + noise.spans + 1;
}

int64_t raw_length_for(int64_t input_length, int64_t target_length, double density,
                       double mean_length) {
  const auto fits = [&](int64_t length) {
    const NoiseCounts noise = noise_counts(length, density, mean_length);
    return length - noise.tokens + noise.spans + 1 <= input_length &&
           noise.tokens + noise.spans + 1 <= target_length;
  };
  // Neither side gets shorter with the length, and together they are longer than it.
  constexpr int64_t kMost = int64_t{1} << 62;
  int64_t best = 1, end = std::min(input_length, kMost / 2) + std::min(target_length, kMost / 2);
  while (best < end) {
    const int64_t middle = best + (end - best + 1) / 2;
    if (fits(middle)) {
      best = middle;
    } else {
      end = middle - 1;
    }
  }
  return best;
}

} // namespace pentatron::data
