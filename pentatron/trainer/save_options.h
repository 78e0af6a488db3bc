/// How a run's checkpoints are saved and kept.
#pragma once

#include "pentatron/checkpoint/run_saver.h"
#include "pentatron/trainer/config.h"

namespace pentatron::trainer {

checkpoint::SaveOptions save_options(const CheckpointConfig& c);

} // namespace pentatron::trainer
