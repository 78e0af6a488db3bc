/// The files of a model that a run starts from.
#pragma once

#include <map>
#include <string>

namespace pentatron::checkpoint {

/// config.json and generation_config.json of a model (hf:DIR, one checkpoint, or a file that has
/// none), by their names in a run's checkpoints ("hf/config.json"): exports keep them.
std::map<std::string, std::string> model_files(const std::string& where);

} // namespace pentatron::checkpoint
