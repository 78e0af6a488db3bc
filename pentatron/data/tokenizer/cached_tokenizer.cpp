#include "pentatron/data/tokenizer/cached_tokenizer.h"

#include "pentatron/base/error.h"
#include "pentatron/data/utf8.h"

namespace pentatron::data::tokenizer {

class CachedTokenizer::CachedEncoder final : public Encoder {
 public:
  explicit CachedEncoder(const CachedTokenizer& tokenizer) : tokenizer_(tokenizer) {}
  void encode(std::string_view text, std::vector<int32_t>& tokens) override {
    tokenizer_.encode_checked(text, cache_, tokens);
  }

 private:
  const CachedTokenizer& tokenizer_;
  WordCache cache_;
};

void CachedTokenizer::encode_checked(std::string_view text, WordCache& cache,
                                     std::vector<int32_t>& tokens) const {
  if (const size_t bad = find_invalid_utf8(text); bad != std::string_view::npos)
    raise<DataError>("byte {} of the text is not UTF-8", bad);
  // Positions within a word are kept in 32 bits.
  if (text.size() >= (size_t{1} << 30))
    raise<DataError>("a text of {} bytes is longer than the 1 GiB that can be encoded at once",
                     text.size());
  if (!text.empty()) encode_valid(text, cache, tokens);
}

void CachedTokenizer::encode(std::string_view text, std::vector<int32_t>& tokens) const {
  CachePool::Loan cache(caches_);
  encode_checked(text, *cache, tokens);
}

void CachedTokenizer::encode_with_special(std::string_view text,
                                          std::vector<int32_t>& tokens) const {
  for (const PostProcessor::Piece& piece : post_processor().single) {
    if (piece.token == PostProcessor::Piece::kFirst)
      encode(text, tokens);
    else
      tokens.push_back(piece.token);
  }
}

EncodedPair CachedTokenizer::encode_pair(std::string_view text,
                                         std::optional<std::string_view> second,
                                         int64_t max_length) const {
  std::vector<int32_t> first_tokens;
  encode(text, first_tokens);
  std::optional<std::vector<int32_t>> second_tokens;
  if (second) encode(*second, second_tokens.emplace());
  return post_process(post_processor(), std::move(first_tokens), std::move(second_tokens),
                      max_length);
}

std::unique_ptr<Encoder> CachedTokenizer::make_encoder() const {
  return std::make_unique<CachedEncoder>(*this);
}

} // namespace pentatron::data::tokenizer
