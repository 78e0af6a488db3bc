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
  tokens.insert(tokens.end(), tokens_before().begin(), tokens_before().end());
  encode(text, tokens);
  tokens.insert(tokens.end(), tokens_after().begin(), tokens_after().end());
}

std::unique_ptr<Encoder> CachedTokenizer::make_encoder() const {
  return std::make_unique<CachedEncoder>(*this);
}

} // namespace pentatron::data::tokenizer
