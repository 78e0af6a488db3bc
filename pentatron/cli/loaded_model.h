/// A trained model in any format, on the ranks of a command.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "pentatron/checkpoint/adapters/peft_files.h"
#include "pentatron/checkpoint/model_source.h"
#include "pentatron/cli/ranks.h"
#include "pentatron/cli/writing.h"
#include "pentatron/data/tokenizer.h"
#include "pentatron/data/tokenizer/chat_template.h"
#include "pentatron/parallelize/parallelize.h"
#include "pentatron/trainer/config.h"

namespace pentatron::cli {

/// What `model` of generate, chat and evaluate may be.
inline constexpr const char* kModelHelp =
    "model: a run's checkpoint folder (checkpoint.save), one checkpoint in it (step_NNNNNNNN), a "
    "Hugging Face folder, ORG/NAME of a downloaded Hugging Face model, or a .gguf file";

/// For a model without a tokenizer.
inline constexpr const char* kGivenTokenizer = "tokenizer.path=FILE_OR_FOLDER with its tokenizer";

inline constexpr const char* kAdapterHelp =
    "adapter to merge into the model: a Hugging Face PEFT folder, or the checkpoint folder of a "
    "run with peft.type";
/// What open_model() takes for the model with the adapter (empty: without one).
std::string with_adapter(const std::string& model, const std::string& adapter);

/// A model before its weights are loaded.
struct OpenedModel {
  std::string where; ///< as the user named it
  std::unique_ptr<checkpoint::ModelSource> source;
  trainer::Config config; ///< of the model, with the keys that the user gave
};
/// The configuration of the run that trained the model; the defaults if it is unknown.
trainer::Config saved_config(const checkpoint::ModelFacts& facts);
/// What a run computes in that starts from weights of this type.
trainer::Precision precision_of(SafeDtype dtype);

struct ModelUse {
  std::vector<std::string> keys =
      {};              ///< more that may be given (a section by its name and a point)
  bool copies = false; ///< several copies of the model, on data-parallel ranks
};
/// Keys of the layout (tensor and pipeline ranks), dist, tokenizer.path, train.seq_length (the
/// context), dtype, device and train.num_threads may be given. Throws ConfigError if the ranks are
/// not those of one model, or of its copies, and if no sequence of the model is that long.
OpenedModel open_trained_model(const std::string& where, const std::vector<std::string>& keys,
                               int ranks, const ModelUse& use = {});

/// Like open_trained_model(), but throws ConfigError for a model that does not generate text.
OpenedModel open_generator(const std::string& where, const std::vector<std::string>& keys,
                           int ranks);

/// Warns, on one of the ranks, of settings in the model's generation_config.json that are not used,
/// but for those that `given` options replace.
void tell_unused_settings(const OpenedModel& opened, const Ranks& ranks,
                          const WritingOptions* given = nullptr);

/// Loads this rank's part of the model. Collective over the world. `variants`: adapters to load in
/// addition; each row of a pass can use one of them.
parallelize::RankModel load_model(const OpenedModel& opened, const comm::Group& world,
                                  const std::vector<checkpoint::Adapter>& variants = {});

struct LoadedModel {
  parallelize::RankModel model;
  comm::ParallelGroups groups;
};
/// Like load_model(), and also returns the ranks' groups.
LoadedModel load_model_in_groups(const OpenedModel& opened, const comm::Group& world,
                                 const std::vector<checkpoint::Adapter>& variants = {});

/// Where the tokenizer's files are: tokenizer.path, if the user gave it, else those of the model;
/// empty: it has none.
std::filesystem::path tokenizer_path(const OpenedModel& opened);

struct ChatFormat {
  data::tokenizer::ChatTemplate text;
  std::vector<std::string> stops = {}; ///< texts that end an answer, in addition to the end tokens
};
/// How conversations with the model are written, or with it and an adapter; none: there is no chat
/// template.
std::optional<ChatFormat> open_chat_format(const OpenedModel& opened,
                                           const data::Tokenizer& tokenizer,
                                           const checkpoint::AdapterOrigin* adapter = nullptr);
/// As the model's data read it: special tokens that they added are not in it. Null if none is
/// known.
std::shared_ptr<const data::Tokenizer> open_plain_tokenizer(const OpenedModel& opened);
/// With those. Null if none is known.
std::shared_ptr<const data::Tokenizer> open_tokenizer_of(const OpenedModel& opened);

} // namespace pentatron::cli
