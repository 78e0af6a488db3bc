/// Which tensor of a GGUF file is which of a Hugging Face model: one list for reading and writing.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace pentatron::checkpoint {

/// llama.cpp's architecture and Hugging Face's names of it.
struct GgufFamily {
  std::string_view architecture, model_type, model_class;
};
/// Of an architecture of several families, the first is what a file without more is.
std::span<const GgufFamily> gguf_families();
/// Null: it is not known.
const GgufFamily* find_gguf_family(std::string_view GgufFamily::*name, std::string_view value);
/// "llama, mistral or gpt2": Hugging Face's.
std::string gguf_family_list();

/// What decides names and shapes of a model's tensors.
struct GgufStructure {
  std::string architecture; ///< general.architecture
  int64_t layers = 0;
  int64_t hidden = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_size = 0;
  int64_t ffn = 0;
  int64_t vocab = 0;
  int64_t positions = 0; ///< of gpt2
  bool qkv_bias = false, proj_bias = false, mlp_bias = false;
  bool untied = false; ///< output.weight is there
};

/// gemma2 or gemma3.
bool is_gemma(std::string_view architecture);

/// How the rows of the GGUF tensor lie to Hugging Face's.
enum class GgufOrder : uint8_t {
  kSame,
  kRotary,    ///< in each head, rows 2i and 2i+1 are Hugging Face's i and i + half
  kTransposed ///< GPT-2's Conv1D
};

struct GgufMapEntry {
  std::string gguf, hf;
  std::vector<int64_t> shape; ///< Hugging Face's
  GgufOrder order = GgufOrder::kSame;
  int64_t heads = 1; ///< of kRotary
  float shift = 0;   ///< the file's values are Hugging Face's plus this: Gemma's norms
  /// Row-major, in the file.
  std::vector<int64_t> gguf_shape() const;
};

/// The number whose inverse root Gemma's attention scores are multiplied with, as llama.cpp has it:
/// files do not say it.
int64_t gemma_query_scalar(const GgufStructure& structure);

/// Every tensor of the model, in its order.
std::vector<GgufMapEntry> gguf_map(const GgufStructure& structure);

/// Where row `row` of the GGUF tensor stands in Hugging Face's, of `rows` rows.
int64_t hf_row(const GgufMapEntry& entry, int64_t row, int64_t rows);

} // namespace pentatron::checkpoint
