#include "pentatron/data/token_stream.h"

#include <algorithm>
#include <string>
#include <vector>

#include "pentatron/base/error.h"

namespace pentatron::data {

void IndexedStream::copy(int64_t begin, int64_t count, int64_t* out) const {
  corpus_->read_tokens(begin, count, out);
  check_tokens(out, count, vocab_size_, *corpus_);
}

namespace {

/// Of at most as many tokens as can be read in a second or two.
int64_t largest_token(const IndexedDataset& corpus) {
  constexpr int64_t kChunk = 1 << 20, kMost = 1 << 28;
  std::vector<int64_t> tokens;
  int64_t largest = 0;
  for (int64_t at = 0; at < std::min(kMost, corpus.num_tokens()); at += kChunk) {
    tokens.resize(static_cast<size_t>(std::min(kChunk, corpus.num_tokens() - at)));
    corpus.read_tokens(at, std::ssize(tokens), tokens.data());
    largest = std::max(largest, *std::ranges::max_element(tokens));
  }
  return largest;
}

} // namespace

void check_tokens(const int64_t* tokens, int64_t count, int64_t vocab_size,
                  const IndexedDataset& corpus) {
  const int64_t* bad =
      std::find_if(tokens, tokens + count, [&](int64_t id) { return id < 0 || id >= vocab_size; });
  if (bad == tokens + count) return;
  const std::string what = fmt::format("{}.bin: token {} is outside model.vocab_size={}",
                                       corpus.prefix(), *bad, vocab_size);
  if (*bad < 0) throw DataError(what);
  raise<DataError>("{}\n  try: model.vocab_size={} for a new model, or a corpus made with the "
                   "tokenizer of the model",
                   what, std::max(*bad, largest_token(corpus)) + 1);
}

} // namespace pentatron::data
