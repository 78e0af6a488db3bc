#include "pentatron/data/token_stream.h"

#include <algorithm>

#include "pentatron/base/error.h"

namespace pentatron::data {

void IndexedStream::copy(int64_t begin, int64_t count, int64_t* out) const {
  corpus_->read_tokens(begin, count, out);
  check_tokens(out, count, vocab_size_, corpus_->prefix() + ".bin");
}

void check_tokens(const int64_t* tokens, int64_t count, int64_t vocab_size,
                  const std::string& where) {
  const int64_t* bad =
      std::find_if(tokens, tokens + count, [&](int64_t id) { return id < 0 || id >= vocab_size; });
  if (bad == tokens + count) return;
  const int64_t largest = *std::max_element(tokens, tokens + count);
  raise<DataError>("{}: token {} is outside model.vocab_size={}\n  try: {}", where, *bad,
                   vocab_size,
                   *bad < 0 ? "the tokenizer that made the corpus, to make it again"
                            : fmt::format("model.vocab_size={}, or the larger vocabulary of the "
                                          "tokenizer that made the corpus",
                                          largest + 1));
}

} // namespace pentatron::data
