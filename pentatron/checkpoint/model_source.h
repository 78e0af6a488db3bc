/// A trained model in files of any supported format: its configuration, the location of its
/// tokenizer, and its parameters for a rank in any layout.
///
///   const auto source = open_model("runs/mine/checkpoints");
///   ... build a model of source->config() ...
///   source->load(model.model->params());
///
/// The format is detected from the content: a run's checkpoint folder (checkpoint.save) or one
/// checkpoint in it, a Hugging Face folder (config.json with model.safetensors or its index;
/// "hf:DIR" selects this format explicitly), or a .gguf file. ORG/NAME, also after "hf:", is a
/// Hugging Face model in the local cache.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "pentatron/base/json.h"
#include "pentatron/checkpoint/adapters/adapter_origin.h"
#include "pentatron/checkpoint/generation_defaults.h"
#include "pentatron/checkpoint/sharded/manifest.h"
#include "pentatron/checkpoint/strictness.h"
#include "pentatron/models/model_config.h"
#include "pentatron/models/param_specs.h"
#include "pentatron/nn/param.h"

namespace pentatron::checkpoint {

enum class ModelFormat : uint8_t { kPentatron, kHuggingFace, kGguf };
std::string_view name_of(ModelFormat format); ///< "pentatron", "hf", "gguf"

/// Where the tokenizer of a model is.
struct TokenizerPlace {
  enum class Kind : uint8_t {
    kNone,
    kFiles, ///< tokenizer.json, tokenizer.model, ... in the folder `path`
    kGguf,  ///< inside the file `path`
    kConfig ///< given by the section `tokenizer` of saved_config()
  };
  Kind kind = Kind::kNone;
  std::filesystem::path path;
};

/// What is known of a model before its weights are read.
struct ModelFacts {
  ModelFormat format = ModelFormat::kPentatron;
  std::filesystem::path path; ///< the folder or file with the weights
  models::ModelConfig config;
  std::string family; ///< Hugging Face's model_type; empty: none was named
  /// Longest sequence: max_position_embeddings, whatever the samples of training had, so that an
  /// exported model and its checkpoint give the same. Of T5, which has no such key, its default.
  int64_t context = 0;
  TokenizerPlace tokenizer;
  GenerationDefaults generation;
  bool mtp_left_out = false;  ///< layers of multi-token prediction that the files have
  bool trained = false;       ///< by pentatron, since it came from elsewhere
  bool without_head = false;  ///< LlamaModel: config.json and the files have no output layer
  std::string saved_config;   ///< the run's configuration as YAML; empty: none
  TensorInfos tensors;        ///< by parameter, with the true shape and the type in the files
  AdapterOrigin adapter = {}; ///< that is merged into the weights
  /// Small files that belong to the model: config.json, generation_config.json, the tokenizer's.
  std::vector<std::filesystem::path> companions;
  /// Trained tensors in the files that the model does not have: heads of other tasks.
  std::vector<std::string> unused = {};
  /// How the Hugging Face files differ from what the family's names and the parameters' types say:
  /// {"names": {hf: name in the files}, "dtypes": {hf: "BF16"}, "copies": false if they lack those
  /// of hf_copies()}.
  Json hf = Json::object();
};

/// Calls `fill` for every parameter (not buffer) to load, while its values can be written.
using EachParam = std::function<void(const std::function<void(nn::Param&)>& fill)>;

class ModelSource {
 public:
  virtual ~ModelSource() = default;
  ModelSource(const ModelSource&) = delete;
  ModelSource& operator=(const ModelSource&) = delete;

  const ModelFacts& facts() const { return facts_; }
  ModelFormat format() const { return facts_.format; }
  const models::ModelConfig& config() const { return facts_.config; }
  /// The type of most of the weights: F64, F32, F16 or BF16.
  SafeDtype dtype() const;

  /// Fills `target`, a CPU tensor of the box's size with any strides and floating type, with a box
  /// of a parameter. Only what the box covers is read. For one thread at a time.
  virtual void read(const std::string& param, const Box& box, const at::Tensor& target) = 0;

  /// Maps the values of parameters without storage from the files: the memory is shared by all
  /// processes until one writes to it. Returns the mapped parameters. The others have another type
  /// or layout and must be copied with load().
  virtual std::set<const nn::Param*> lend(nn::ParamList& params);

  /// Loads every parameter of a rank except adapters, in any layout, converted to its type. Throws
  /// CheckpointError that lists all parameters that are missing in the files or have another shape.
  void load(nn::ParamList& params);
  /// Loads values that are written through a store.
  /// With Strictness::kLogAll parameters that the files lack keep their values, as do those of a
  /// classifier of another size; buffers always keep them.
  void load(nn::ParamList& params, const EachParam& each,
            Strictness strictness = Strictness::kRaiseAll);
  /// Called again and again while something is read, by any thread.
  virtual void on_progress(std::function<void()> call) { progress_ = std::move(call); }
  /// Throws the errors of load() for a model with these parameters. Returns the parameters that are
  /// missing in the files and may be missing. Does not read tensors.
  std::vector<std::string> check(const models::ParamSpecs& specs,
                                 Strictness strictness = Strictness::kRaiseAll) const;
  /// Throws CheckpointError for tensors of layers that are not among these of a model (parameters
  /// and buffers), unless `strictness` ignores them. Heads of other tasks may be left out.
  void check_layers(const models::ParamSpecs& tensors, Strictness strictness) const;

 protected:
  explicit ModelSource(ModelFacts facts) : facts_(std::move(facts)) {}
  ModelFacts facts_;

 private:
  std::function<void()> progress_;
};

/// "ema:WHERE", which open_model() takes as the running mean of the weights in a checkpoint.
std::string averaged(const std::string& where);
/// WHERE of that.
std::optional<std::string> after_average_prefix(const std::string& where);

/// What a model is opened for. A decoder without an output layer (LlamaModel) has hidden states
/// alone; `config` then has the embedding in the place of that layer.
enum class ModelPurpose : uint8_t { kAll, kHiddenStates };

/// Throws DataError or CheckpointError if `where` is not a model or is corrupted, ConfigError if
/// the architecture is not supported, and CheckpointError that lists every tensor that is missing,
/// unexpected or has a wrong shape.
std::unique_ptr<ModelSource> open_model(const std::string& where,
                                        ModelPurpose purpose = ModelPurpose::kAll);

/// The format of the files; throws DataError if it is unknown.
ModelFormat recognise_model(const std::filesystem::path& where);

inline constexpr const char* kChatTemplateFile = "chat_template.jinja";

/// Names of the files that belong to a Hugging Face model, in addition to its weights.
inline constexpr std::array kCompanionFiles = {"config.json",
                                               "generation_config.json",
                                               "tokenizer.json",
                                               "tokenizer_config.json",
                                               "tokenizer.model",
                                               "special_tokens_map.json",
                                               "added_tokens.json",
                                               "vocab.json",
                                               "merges.txt",
                                               "vocab.txt",
                                               "spiece.model",
                                               "sentencepiece.bpe.model",
                                               kChatTemplateFile,
                                               "chat_template.json",
                                               "LICENSE"};
/// The companion files that exist in a folder.
std::vector<std::filesystem::path> companion_files(const std::filesystem::path& folder);

} // namespace pentatron::checkpoint
