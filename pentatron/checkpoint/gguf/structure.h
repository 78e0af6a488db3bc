/// Which tensor of a GGUF file is which of a Hugging Face model: one list for reading and writing.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace pentatron::checkpoint {

struct GgufFamily;

/// Multi-head latent attention, whose heads are not alike in keys and values.
struct GgufLatent {
  int64_t q_rank = 0; ///< 0: queries are not compressed
  int64_t kv_rank = 0;
  int64_t key = 0, value = 0; ///< sizes of a head; `rotary` is a part of the key's
  int64_t rotary = 0;
  bool split = true;   ///< kv_b_proj is two tensors, as in all but old files
  bool halves = false; ///< Hugging Face's rotary pairs are halves, the file's are neighbors
};

/// What decides names and shapes of a model's tensors.
struct GgufStructure {
  const GgufFamily* family = nullptr;
  int64_t layers = 0;
  int64_t hidden = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_size = 0;
  int64_t ffn = 0;
  int64_t vocab = 0;
  int64_t positions = 0; ///< of learned embeddings
  bool qkv_bias = false, proj_bias = false, mlp_bias = false;
  bool untied = false; ///< output.weight is there
  int64_t experts = 0; ///< of every layer; 0: layers have an MLP
  int64_t expert_ffn = 0, shared_ffn = 0;
  int64_t dense = 0; ///< layers before those with experts
  GgufLatent latent;
};

/// How the rows of the GGUF tensor lie to Hugging Face's.
enum class GgufOrder : uint8_t {
  kSame,
  kRotary,    ///< in each head, rows 2i and 2i+1 are Hugging Face's i and i + half
  kTransposed ///< of GPT-2's Conv1D, and of each head's keys in latent attention
};

struct GgufMapEntry {
  /// Of experts, `hf` is the name of weight_map(model, HfNames::kStacks).
  std::string gguf, hf;
  std::vector<int64_t> shape; ///< Hugging Face's
  GgufOrder order = GgufOrder::kSame;
  int64_t heads = 1;  ///< of kRotary, and of `size`
  int64_t rotary = 0; ///< of kRotary: rows at the end of each head that rotate; 0: all
  /// The file's tensor is [heads, ...] of `size` rows of each head, from `first`; 0: all rows.
  int64_t first = 0, size = 0;
  float shift = 0;     ///< the file's values are Hugging Face's plus this: Gemma's norms
  bool vector = false; ///< one row, which the file has as a vector
  /// Row-major, in the file.
  std::vector<int64_t> gguf_shape() const;
  int64_t head_rows() const { return shape.front() / heads; } ///< Hugging Face's
};

/// Every tensor of the model, in its order.
std::vector<GgufMapEntry> gguf_map(const GgufStructure& structure);

/// Where row `row` of the GGUF tensor stands in Hugging Face's, of `rows` rows.
int64_t hf_row(const GgufMapEntry& entry, int64_t row, int64_t rows);

} // namespace pentatron::checkpoint
