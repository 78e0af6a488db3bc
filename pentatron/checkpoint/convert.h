/// Converts models between formats, one block of a tensor at a time, without building a model.
///
/// Converting from a Hugging Face folder and back, directly or through pentatron, keeps every byte
/// of every tensor, its type, its name, config.json and the tokenizer files. The target appears
/// only when it is complete; until then it has a temporary name.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "pentatron/base/gguf.h"
#include "pentatron/checkpoint/model_source.h"

namespace pentatron::checkpoint {

struct ConvertOptions {
  ModelFormat format = ModelFormat::kHuggingFace;
  /// "fp64", "fp32", "bf16", "fp16"; of GGUF also "q8_0" and "q4_k". Empty: each tensor as it is
  /// (of GGUF: bf16 or fp16 if the weights are, else fp32).
  std::string dtype;
  uint64_t max_shard_bytes = uint64_t{5'000'000'000};
  bool overwrite = false;  ///< replace a model that is there
  std::string config_yaml; ///< of a pentatron checkpoint: what a run with it is configured by
  GgufMetadata tokenizer;  ///< of a GGUF file
  /// More files for a Hugging Face folder or a checkpoint, by name: a tokenizer that was no file.
  std::map<std::string, std::string> files;
  std::function<void(uint64_t done, uint64_t total)> progress; ///< in bytes
};

struct ConvertReport {
  uint64_t bytes = 0; ///< of tensors
  size_t tensors = 0;
  size_t files = 0; ///< that hold tensors
};

/// Throws ConfigError if the target exists, unless it is a model and options.overwrite is set.
void check_target(const ModelSource& source, const std::filesystem::path& target,
                  const ConvertOptions& options);

/// Throws ConfigError with the keys if the format does not support the model, and if the target
/// exists or cannot be replaced safely. Throws CheckpointError for corrupted data and for values
/// that `dtype` cannot represent.
ConvertReport convert_model(ModelSource& source, const std::filesystem::path& target,
                            const ConvertOptions& options);

/// Writes a Hugging Face model into `folder`, which exists and is empty.
ConvertReport write_hf_folder(ModelSource& source, const std::filesystem::path& folder,
                              const ConvertOptions& options);

/// Whether write_hf_folder() gives a file this name.
bool is_exported_name(std::string_view name);

/// F64, F32, BF16, F16 of "fp64" and so on. Throws ConfigError.
SafeDtype weight_dtype_from_name(const std::string& name);

} // namespace pentatron::checkpoint
