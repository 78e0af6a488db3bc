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

/// Logs what the search for the checkpoint of a run with checkpoint.load found: which checkpoints
/// were skipped, or that a new run starts. Throws CheckpointError if a required checkpoint is
/// missing. `moves`: the run will move the skipped checkpoints; the message about the move then
/// says how to repair them.
void report_found(const CheckpointConfig& config,
                  const std::optional<checkpoint::FoundCheckpoint>& found, bool moves = false);

} // namespace pentatron::trainer
