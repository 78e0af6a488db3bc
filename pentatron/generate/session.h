/// A model that generates text: the tokens that it has read of several texts, cached as keys and
/// values.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "pentatron/nn/kv_cache.h"
#include "pentatron/parallelize/parallelize.h"

namespace pentatron::generate {

/// On tensor and pipeline ranks too: all ranks of a model make the same calls. The model must
/// outlive it.
class Session {
 public:
  /// `texts`: how many are kept side by side; `fp8_cache`: see nn::KvCache.
  Session(parallelize::ModelView model, int64_t texts, bool fp8_cache = false);

  struct Input {
    int64_t text = 0;
    std::span<const int64_t> tokens; ///< that follow what the text has; at least one
    /// Of a model with an encoder, with the first tokens of a text: what it reads, at least one.
    std::span<const int64_t> source = {};
    int64_t variant =
        0; ///< of the model's adapters that rows may take, see nn::VariantRows; 0: none
    int64_t logits = 1; ///< after so many of the last tokens; 0: none
  };
  /// Reads the tokens. Returns the logits [rows, V] that are asked for, input after input, on the
  /// CPU in fp32 or fp64, on ranks that hold the last stage; elsewhere, and if there are none,
  /// undefined. Throws DataError for a token outside the vocabulary.
  at::Tensor read(const std::vector<Input>& inputs);

  /// What has been read of a text.
  const std::vector<int64_t>& tokens(int64_t text) const {
    return tokens_[static_cast<size_t>(text)];
  }
  /// Forgets the tokens from `length` on.
  void truncate(int64_t text, int64_t length);

  /// Tokens of a page, see adopt().
  static constexpr int64_t kPage = nn::KvCache::kPage;
  /// Returns the cached keys and values of page `page` of a text. All tokens of the page must have
  /// been read.
  nn::KvCache::Block block(int64_t text, int64_t page) const { return cache_.block(text, page); }
  /// Appends the kPage tokens of a block to a text without reading them again. The text's length
  /// must be a multiple of kPage, and the block must come from a text with the same earlier tokens.
  void adopt(int64_t text, std::span<const int64_t> tokens, const nn::KvCache::Block& block);
  /// Replaces a page of the text with an equal block, so that both share memory.
  void replace(int64_t text, int64_t page, const nn::KvCache::Block& block) {
    cache_.replace(text, page, block);
  }
  /// Bytes that the pages of all texts take on this rank.
  int64_t bytes() const { return cache_.bytes(); }
  /// Whether texts begin with a source: the model has an encoder.
  bool has_sources() const { return model_.model.spec().streams.size() > 1; }

  const parallelize::ModelView& model() const { return model_; }
  /// Whether this rank's read() gives logits.
  bool has_logits() const;
  /// Sends a tensor from a rank with logits to the ranks of the other stages.
  void share(const at::Tensor& x) const;

 private:
  parallelize::ModelView model_;
  pipeline::Schedule schedule_;
  pipeline::Runtime runtime_;
  nn::KvCache cache_;
  std::vector<std::vector<int64_t>> tokens_;
};

} // namespace pentatron::generate
