/// What a run gives to Hugging Face and takes from there, beside the weights.
#pragma once

#include <filesystem>
#include <map>
#include <string>

namespace pentatron::trainer {

/// Writes checkpoint.save/hf/step_NNNNNNNN for a checkpoint in checkpoint.save, a block of a tensor
/// at a time, whole or not at all, and removes the exports whose checkpoint is gone. Returns the
/// folder. Throws Error.
std::filesystem::path export_hf(const std::filesystem::path& checkpoint);

/// config.json and generation_config.json of what a run starts from (hf:DIR, one checkpoint, or a
/// file that has none), by their names in its checkpoints ("hf/config.json"): exports keep them.
std::map<std::string, std::string> model_files(const std::string& where);

} // namespace pentatron::trainer
