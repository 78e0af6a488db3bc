/// Chooses a configuration to fine-tune a model on examples, from the model and the examples.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "pentatron/trainer/config.h"

namespace pentatron::trainer {

/// Number of passes over the examples, unless the user sets the length of the run.
inline constexpr double kEpochs = 3;

struct FinetuneRequest {
  std::string model; ///< a Hugging Face folder, ORG/NAME, FILE.gguf, or a run's checkpoint folder
  std::string data;  ///< as dataset.path
  std::string out;   ///< folder of the run
  bool all_weights = false;           ///< false: adapters
  std::optional<double> epochs;       ///< none: kEpochs
  std::vector<std::string> overrides; ///< key=value; they win
  int world_size = 1;
};

/// A setting that was chosen, and why.
struct ChosenSetting {
  std::string key, value, why;
};

struct FinetuneRun {
  Config config;
  std::vector<ChosenSetting> chosen; ///< without those that the overrides give
};

/// What train_iters and the rest follow from.
struct ExampleFigures {
  int64_t examples = 0;
  int64_t longest = 0; ///< tokens, but for the last one, which is only a label
  int64_t limit = 0;   ///< tokens that a sample may have
};
struct BatchFigures {
  int64_t seq_length = 0, micro_batch_size = 0, global_batch_size = 0;
};
/// Samples that hold the longest example, in multiples of 64, and at least 512 tokens, so that
/// several short examples fill one.
int64_t finetune_seq_length(const ExampleFigures& examples);
/// At least 25 steps in an epoch where there are enough samples, at most 32 samples in a step on
/// one rank, and at most 2048 tokens in a micro-batch.
BatchFigures finetune_batches(int64_t samples, int64_t seq_length, int64_t data_parallel_size);

/// Reads the examples. If `out` holds a checkpoint of the run already, the configuration resumes
/// it. Throws what load_config() and data::TaughtTexts do, and ConfigError for
/// overrides that contradict the rest of the request.
FinetuneRun make_finetune_run(const FinetuneRequest& request);

/// Throws ConfigError if `out` belongs to another run. Before any rank of this one has taken it.
void check_out(const FinetuneRequest& request, const Config& config);

} // namespace pentatron::trainer
