/// The cache of generation for the tokens of earlier passes, so each pass only processes new
/// tokens: keys and values of each attention layer, in pages that sequences may share, and those of
/// the memory that cross-attention reads.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include <ATen/core/Tensor.h>

namespace pentatron::nn {

/// Several sequences side by side. A pass is begin(), append() and set_memory() by the layers,
/// end().
class KvCache {
 public:
  static constexpr int64_t kPage = 64; ///< tokens

  /// fp8: pages keep keys and values in a byte a number, as kernels/quantize/fp8_rows.h; memories
  /// of cross-attention stay as they are.
  explicit KvCache(int64_t sequences, bool fp8 = false);

  int64_t sequences() const { return static_cast<int64_t>(lengths_.size()); }
  /// Tokens of a sequence that the model has seen.
  int64_t length(int64_t sequence) const { return lengths_[static_cast<size_t>(sequence)]; }
  /// Forgets the tokens from `length` on.
  void truncate(int64_t sequence, int64_t length);

  /// A run of new tokens in the batch of a pass.
  struct Document {
    int64_t sequence = 0; ///< -1: none, padding
    int64_t first = 0, count = 0;
  };
  /// Every sequence occurs once at most. `sources`: what is new of the encoder's stream.
  void begin(std::vector<Document> documents, std::vector<Document> sources = {});
  const std::vector<Document>& documents() const { return documents_; }
  const std::vector<Document>& sources() const { return sources_; }
  /// Whether no sequence of the pass had tokens before.
  bool all_new() const;

  /// Of one sequence in one layer.
  struct Pages {
    /// [kPage, g, d] each, in FP8 bytes [kPage, g, d + 4]; no v where the keys hold the values.
    std::vector<at::Tensor> k, v;
  };
  /// By sequence. `layer` is any address that stands for a layer.
  using Layer = std::vector<Pages>;
  /// Adds the new tokens' keys and values [T, g, d] of a layer, and returns all. `v_tgd` may be
  /// undefined.
  const Layer& append(const void* layer, const at::Tensor& k_tgd, const at::Tensor& v_tgd);
  bool fp8() const { return fp8_; }
  void end();

  /// Keys and values of kPage tokens in all layers; the order of layers is the same in all blocks.
  /// A block keeps its pages alive. A sequence copies a shared page before it writes to it.
  struct Block {
    std::vector<at::Tensor> k, v; ///< v[i] is undefined where keys hold the values
  };
  /// Returns page `page` of a sequence. The model must have processed all of its tokens.
  Block block(int64_t sequence, int64_t page) const;
  /// Appends a full page of another sequence to this one. The sequence's length must be a multiple
  /// of kPage; it grows by kPage tokens.
  void adopt(int64_t sequence, const Block& block);
  /// Replaces a sequence's own page with an equal block and frees the page's memory.
  void replace(int64_t sequence, int64_t page, const Block& block);

  /// Keys and values [M, g, d] of a sequence's memory in a layer; undefined: there are none.
  struct Memory {
    at::Tensor k, v;
  };
  void set_memory(const void* layer, int64_t sequence, Memory memory);
  const Memory& memory(const void* layer, int64_t sequence) const;

  /// Bytes held; a page that sequences share counts once.
  int64_t bytes() const;

 private:
  bool fp8_;
  std::vector<int64_t> lengths_;
  std::vector<Document> documents_, sources_;
  std::map<const void*, Layer> layers_;
  std::map<const void*, std::vector<Memory>> memories_;
};

/// x [.., d] as bytes [.., d + 4], and back (kernels/quantize/fp8_rows.h), on any device.
at::Tensor to_fp8_rows(const at::Tensor& x);
at::Tensor from_fp8_rows(const at::Tensor& bytes, at::ScalarType dtype);

} // namespace pentatron::nn
