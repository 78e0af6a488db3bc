/// A tokenizer whose encoding works with a cache of words.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "pentatron/data/tokenizer.h"
#include "pentatron/data/tokenizer/cache_pool.h"
#include "pentatron/data/tokenizer/post_processor.h"

namespace pentatron::data::tokenizer {

class CachedTokenizer : public Tokenizer {
 public:
  void encode(std::string_view text, std::vector<int32_t>& tokens) const final;
  void encode_with_special(std::string_view text, std::vector<int32_t>& tokens) const final;
  EncodedPair encode_pair(std::string_view text, std::optional<std::string_view> second,
                          int64_t max_length) const final;
  std::unique_ptr<Encoder> make_encoder() const final;

 protected:
  /// Appends the tokens of valid UTF-8.
  virtual void encode_valid(std::string_view text, WordCache& cache,
                            std::vector<int32_t>& tokens) const = 0;
  /// What stands around a text.
  virtual const PostProcessor& post_processor() const = 0;

 private:
  class CachedEncoder;
  void encode_checked(std::string_view text, WordCache& cache, std::vector<int32_t>& tokens) const;

  mutable CachePool caches_;
};

} // namespace pentatron::data::tokenizer
