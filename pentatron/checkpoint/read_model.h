/// Reads the weights of a model and falls back to an earlier checkpoint where they are corrupted.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "pentatron/checkpoint/model_source.h"
#include "pentatron/comm/group.h"

namespace pentatron::checkpoint {

/// Calls `read` with the model in `opened`, which is facts().path of what open_model(where) gave.
/// Nothing is read twice: opening checks the structure of a checkpoint, and reading its content. If
/// `where` is a run's folder and a rank finds corrupted weights, all ranks call `read` again with
/// the previous intact checkpoint, after a warning. `read` must not communicate. Collective over
/// the world. Throws what `read` throws, and CheckpointError if no intact checkpoint is left.
void read_model(const std::string& where, const std::filesystem::path& opened,
                const comm::Group& world, const std::function<void(ModelSource&)>& read,
                ModelPurpose purpose = ModelPurpose::kAll);

} // namespace pentatron::checkpoint
