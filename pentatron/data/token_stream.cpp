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
  raise<DataError>(
      "{}: token {} is outside model.vocab_size={}\n  try: model.vocab_size=N with the "
      "vocabulary size of the tokenizer that made the corpus",
      where, *bad, vocab_size);
}

} // namespace pentatron::data
