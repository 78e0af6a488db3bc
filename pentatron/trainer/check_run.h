/// Checks a run before it starts.
#pragma once

#include <optional>

#include "pentatron/checkpoint/sharded/folders.h"
#include "pentatron/trainer/config.h"

namespace pentatron::trainer {

/// Opens the data, the tokenizer and the checkpoint that a run on `world_size` ranks would load
/// (its structure, not every byte), and looks whether its folders are free. Warns of what the run
/// would warn of, and throws what it would throw. Writes nothing.
void check_run(const Config& config, int world_size);

/// Of the checkpoint that a run with checkpoint.load has found: says what was passed over, or that
/// a new run starts. Throws CheckpointError if there is none and there must be one. `moves`: the
/// run will move what was passed over, so how to repair it is said then.
void report_found(const CheckpointConfig& config,
                  const std::optional<checkpoint::FoundCheckpoint>& found, bool moves = false);

} // namespace pentatron::trainer
