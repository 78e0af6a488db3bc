/// Text samples of the model during a run, for logger.sample_prompts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "pentatron/data/tokenizer.h"
#include "pentatron/generate/generate.h"
#include "pentatron/parallelize/parallelize.h"
#include "pentatron/trainer/config.h"

namespace pentatron::trainer {

struct WrittenSample {
  std::string prompt; ///< as logger.sample_prompts has it
  std::string text;   ///< what the model wrote behind it
};

/// Adds what is wrong with logger.sample_prompts.
void check_samples(const Config& config, config::Violations& violations);

/// The prompts of a run as tokens.
class RunSamples {
 public:
  /// Throws ConfigError for a prompt that is neither a text nor an example.
  RunSamples(const Config& config, const data::Tokenizer& tokenizer);

  /// Whether the model writes after this iteration, `last` of the run.
  bool due(int64_t iteration, bool last) const;
  /// `sequence`: tokens of a sample. Collective over all ranks.
  std::vector<WrittenSample> write(const parallelize::ModelView& model,
                                   const data::Tokenizer& tokenizer, int64_t sequence) const;

 private:
  int64_t interval_;
  generate::Options options_;
  std::vector<std::string> shown_;
  std::vector<std::vector<int64_t>> prompts_;
};

} // namespace pentatron::trainer
