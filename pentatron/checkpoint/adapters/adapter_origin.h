/// Where an adapter comes from: PEFT's folder, or a run's checkpoint.
#pragma once

#include <filesystem>
#include <string>

namespace pentatron::checkpoint {

struct AdapterOrigin {
  std::filesystem::path folder; ///< of PEFT; empty: a checkpoint
  std::string saved_config;     ///< of the run, as YAML; empty: PEFT's
};

} // namespace pentatron::checkpoint
