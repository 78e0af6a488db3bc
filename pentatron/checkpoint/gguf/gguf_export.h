/// Writing a Hugging Face model as a GGUF file, as llama.cpp's converter would.
///
/// Tensors of one dimension, norms, biases, routers and GPT-2's positions are F32, the others of
/// the type asked for. Files of Q4_K have some tensors of Q6_K, as llama.cpp's Q4_K_M. Rows whose
/// length is not a multiple of 256 are Q8_0 instead; if it is not a multiple of 32 either, they are
/// F16. Llama's query and key rows go to interleaved rotary pairs, GPT-2's matrices are transposed,
/// 1 is added to Gemma's norms (in fp32: of what is stored in fp32, the last bits are lost), Llama
/// 3's frequencies become rope_freqs. One tensor is in memory at a time. Source:
/// https://github.com/ggml-org/llama.cpp, conversion/.
#pragma once

#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "pentatron/base/gguf.h"
#include "pentatron/base/json.h"
#include "pentatron/base/safetensors.h"

namespace pentatron::checkpoint {

/// A tensor under Hugging Face's name, those of experts under the names of HfNames::kStacks.
struct GgufSource {
  std::string name;
  std::vector<int64_t> shape;
  SafeDtype dtype = SafeDtype::kF32; ///< F64, F32, F16 or BF16
  /// Fills the buffer with all elements, row-major. Called once, in the order of the file.
  std::function<void(std::span<std::byte>)> read;
};

struct GgufExport {
  GgmlType type = GgmlType::kF16; ///< F32, F16, BF16, Q8_0, Q4_K
  std::string name;               ///< general.name; empty: none
  GgufMetadata tokenizer;         ///< tokenizer.*; empty: a model without one
};

/// `hf_config` is config.json of llama, mistral, qwen2, qwen3, gpt2, olmo2, phi3, gemma2,
/// gemma3_text, glm4, mixtral, qwen2_moe, qwen3_moe, olmoe, gpt_oss or deepseek_v3. The file
/// appears whole or not at all. Throws ConfigError that lists features which GGUF or llama.cpp has
/// no place for, else CheckpointError that lists missing, extra and misshapen tensors, or that
/// names the tensor with a value that the type cannot hold.
void write_gguf(const std::filesystem::path& file, const Json& hf_config,
                const std::vector<GgufSource>& tensors, const GgufExport& options);

/// "f32", "f16", "bf16", "q8_0", "q4_k" in any case. Throws ConfigError.
GgmlType gguf_type_from_name(std::string_view name);

} // namespace pentatron::checkpoint
