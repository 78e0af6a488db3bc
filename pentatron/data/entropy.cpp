#include "pentatron/data/entropy.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace pentatron::data {

double unigram_entropy(const Corpus& corpus, StreamRange range, int64_t vocab_size) {
  std::vector<int64_t> counts(static_cast<size_t>(vocab_size));
  std::vector<int64_t> tokens(1 << 16);
  for (int64_t begin = range.begin; begin < range.end;) {
    const int64_t n = std::min(range.end - begin, static_cast<int64_t>(tokens.size()));
    corpus.copy(begin, n, tokens.data());
    for (int64_t i = 0; i < n; ++i)
      ++counts.at(static_cast<size_t>(tokens[static_cast<size_t>(i)]));
    begin += n;
  }
  double entropy = 0;
  for (const int64_t count : counts) {
    if (count == 0) continue;
    const double p = static_cast<double>(count) / static_cast<double>(range.size());
    entropy -= p * std::log(p);
  }
  return entropy;
}

} // namespace pentatron::data
