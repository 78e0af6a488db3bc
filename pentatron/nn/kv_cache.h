/// Keys and values of the tokens that earlier passes saw, so that generation passes over new tokens
/// only.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include <ATen/core/Tensor.h>

namespace pentatron::nn {

/// Several sequences side by side. A pass is begin(), append() by every attention layer, end().
class KvCache {
 public:
  explicit KvCache(int64_t sequences);

  int64_t sequences() const { return static_cast<int64_t>(lengths_.size()); }
  /// Tokens of a sequence that the model has seen.
  int64_t length(int64_t sequence) const { return lengths_[static_cast<size_t>(sequence)]; }
  /// Forgets the tokens from `length` on.
  void truncate(int64_t sequence, int64_t length);
  /// Makes room for sequences of so many tokens at once, instead of growing.
  void reserve(int64_t tokens);

  /// A run of new tokens in the batch of a pass.
  struct Document {
    int64_t sequence = 0; ///< -1: none, padding
    int64_t first = 0, count = 0;
  };
  /// Every sequence occurs once at most.
  void begin(std::vector<Document> documents);
  const std::vector<Document>& documents() const { return documents_; }
  /// Whether no sequence of the pass had tokens before.
  bool all_new() const;

  /// [sequences, capacity, g, d] of one layer
  struct Layer {
    at::Tensor k, v;
  };
  /// Adds the new tokens' keys and values [T, g, d] of a layer, and returns all; `layer` is any
  /// address that stands for it.
  const Layer& append(const void* layer, const at::Tensor& k_tgd, const at::Tensor& v_tgd);
  void end();

  /// Bytes held.
  int64_t bytes() const;

 private:
  std::vector<int64_t> lengths_;
  int64_t capacity_ = 0;
  std::vector<Document> documents_;
  std::map<const void*, Layer> layers_;
};

} // namespace pentatron::nn
