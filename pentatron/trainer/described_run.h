/// The description of a run in its checkpoint, read before the checkpoint is loaded.
#pragma once

#include <filesystem>
#include <optional>
#include <string_view>

#include "pentatron/checkpoint/model_source.h"
#include "pentatron/checkpoint/sharded/manifest.h"
#include "pentatron/trainer/config.h"

namespace pentatron::trainer {

struct DescribedRun {
  std::filesystem::path folder; ///< of the checkpoint
  checkpoint::Manifest manifest;
  Config config; ///< keys that this version knows; the defaults if none is stored
  bool trained;  ///< false: weights alone
};

/// The newest checkpoint that checkpoint.load names, or checkpoint.save with checkpoint.load=auto.
/// Returns nothing if no checkpoint can be read (loading it reports the error), or if
/// checkpoint.load names a model that is not a checkpoint, such as hf:DIR.
std::optional<DescribedRun> described_run(const CheckpointConfig& checkpoint);

/// What a run has stored, perhaps another version of the program: keys that this one does not know,
/// and values that it does not allow, are left out.
Config stored_config(std::string_view yaml);

/// The configuration of the run that a model comes from, as far as this version knows its keys; the
/// defaults if the model does not come from a run.
Config described_config(const checkpoint::ModelFacts& facts);

} // namespace pentatron::trainer
