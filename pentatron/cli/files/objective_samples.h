/// `pentatron inspect samples` of dataset.type=bert and t5.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "pentatron/data/dataset.h"

namespace pentatron::cli {

struct ObjectiveSamples {
  std::vector<std::string> settings; ///< YAML files and key=value, as `train` takes them
  data::Part part = data::Part::kTrain;
  std::vector<int64_t> indices;
  bool text = false; ///< also decoded
};

/// Prints the samples that a run with these settings reads: what the model reads, without padding,
/// and what it is to predict. Keys that are not about data have no effect. Throws
/// ConfigError if the settings name another type of data, or the part has no such sample.
void print_objective_samples(const ObjectiveSamples& samples);

} // namespace pentatron::cli
