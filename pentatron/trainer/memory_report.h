/// The measured memory of a run, compared with the estimate, and suggestions when memory runs out.
#pragma once

#include <exception>
#include <string>

#include "pentatron/comm/group.h"
#include "pentatron/trainer/config.h"

namespace pentatron::trainer {

/// Of the rank on a CPU that has held most so far: its peak and the peaks of its parts, each with
/// the estimate of plan_memory() in brackets. Collectives: of texts.
std::string measured_memory(const Config& config, const comm::Group& world);

/// Whether an allocation has failed, on a CPU or a GPU.
bool is_out_of_memory(const std::exception& error);

/// The sentence for it: what this rank held, largest first, and values with which the run would
/// take less than that.
std::string out_of_memory_text(const Config& config, int world_size);

} // namespace pentatron::trainer
