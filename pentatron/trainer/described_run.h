/// The description of a run in its checkpoint, read before the checkpoint is loaded.
#pragma once

#include <filesystem>
#include <optional>

#include "pentatron/checkpoint/model_source.h"
#include "pentatron/checkpoint/sharded/manifest.h"
#include "pentatron/trainer/config.h"

namespace pentatron::trainer {

struct DescribedRun {
  std::filesystem::path folder; ///< of the checkpoint
  checkpoint::Manifest manifest;
  Config config; ///< as far as this version knows its keys; the defaults if none is there
  bool trained;  ///< false: weights alone
};

/// The newest checkpoint that checkpoint.load names, or checkpoint.save with checkpoint.load=auto.
/// None if there is none, which is told when it is loaded, or if the model is no run's.
std::optional<DescribedRun> described_run(const CheckpointConfig& checkpoint);

/// The configuration of the run that a model comes from, as far as this version knows its keys; the
/// defaults if it comes from none.
Config described_config(const checkpoint::ModelFacts& facts);

} // namespace pentatron::trainer
