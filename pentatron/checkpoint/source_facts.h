/// Common parts of the kinds of ModelSource.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "pentatron/checkpoint/hf/hf_config.h"
#include "pentatron/checkpoint/model_source.h"

namespace pentatron::checkpoint {

/// Collects problems with the tensors of a model and reports them in one error.
class TensorProblems {
 public:
  void missing(const std::string& name) { missing_.push_back(name); }
  void unexpected(const std::string& name) { unexpected_.push_back(name); }
  void misfit(std::string sentence) { misfits_.push_back(std::move(sentence)); }
  bool only_missing() const { return unexpected_.empty() && misfits_.empty(); }
  bool empty() const { return missing_.empty() && unexpected_.empty() && misfits_.empty(); }
  /// Throws CheckpointError "<begin>:" with one line for each.
  void throw_if_any(const std::string& begin) const;

 private:
  std::vector<std::string> missing_, unexpected_, misfits_;
};

std::string shape_text(const std::vector<int64_t>& shape); ///< "[4, 8]"
/// Whether weights of that type are taken: F64, F32, F16, BF16.
bool is_weight_dtype(SafeDtype dtype);

/// Where config.json and generation_config.json, and the tokenizer's files, lie in a checkpoint of
/// pentatron.
inline constexpr const char* kCompanionFolder = "hf";
inline constexpr const char* kTokenizerFolder = "tokenizer";
/// In a manifest's state: the token that ends a document, and so a text.
inline constexpr const char* kEod = "eod";

/// Whether tokenizer files lie in the folder.
bool has_tokenizer_files(const std::filesystem::path& folder);

std::unique_ptr<ModelSource> open_run_model(const std::filesystem::path& where,
                                            bool average = false);
std::unique_ptr<ModelSource> open_hf_model(const std::filesystem::path& folder,
                                           ModelPurpose purpose = ModelPurpose::kAll);
std::unique_ptr<ModelSource> open_hf_model(const std::filesystem::path& folder,
                                           const HfModel& model,
                                           ModelPurpose purpose = ModelPurpose::kAll);
std::unique_ptr<ModelSource> open_gguf_model(const std::filesystem::path& file);

} // namespace pentatron::checkpoint
