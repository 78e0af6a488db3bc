/// A GGUF file as a Hugging Face model: its config.json, and its tensors under Hugging Face's names
/// and in its shapes and order.
///
/// Architectures: llama (also Mistral's models, which llama.cpp writes as llama), qwen2, qwen3,
/// gpt2, olmo2, phi3, gemma2, gemma3, glm4, and with experts llama (Mixtral), qwen2moe, qwen3moe,
/// olmoe, gpt-oss, deepseek2 (of DeepSeek-V3, whose keys and values are joined again), whose
/// experts stay a tensor for each matrix of all of a layer. What llama.cpp's
/// converter does to a model is undone: llama's query and key rows go back from interleaved rotary
/// pairs to halves, GPT-2's matrices are transposed again, 1 is taken from Gemma's norms, Llama 3's
/// rope_freqs become rope_parameters. What changes the numbers is taken over or refused.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "pentatron/base/json.h"
#include "pentatron/base/safetensors.h"

namespace pentatron::checkpoint {

class GgufModel {
 public:
  struct Tensor {
    std::string name; ///< "model.layers.0.self_attn.q_proj.weight"
    std::vector<int64_t> shape;
    SafeDtype dtype = SafeDtype::kF32; ///< F32, F16, BF16 as stored; F32 for quantised ones
    uint64_t size_bytes() const;
  };

  /// Throws DataError if the file is damaged, CheckpointError that lists everything in which it is
  /// not a model of a known architecture: missing, extra and misshapen tensors, types of tensors.
  explicit GgufModel(const std::filesystem::path& file);
  ~GgufModel();
  GgufModel(GgufModel&&) noexcept;
  GgufModel& operator=(GgufModel&&) noexcept;

  /// The keys of config.json, as transformers writes them.
  const Json& config() const;
  /// In the order of the model. Tied weights are there once, without lm_head.weight.
  const std::vector<Tensor>& tensors() const;
  const Tensor* find(std::string_view name) const;

  /// All of a tensor, row-major in its dtype; `target` has size_bytes(). Any number of threads may
  /// read. Throws DataError if there is no such tensor, or the file was shortened meanwhile.
  void read(std::string_view name, std::span<std::byte> target) const;

  const std::filesystem::path& path() const;
  /// Whether the file contains a tokenizer.
  bool has_tokenizer() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

} // namespace pentatron::checkpoint
