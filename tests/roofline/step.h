/// One training step on the device without a GPU.
#pragma once

#include <string>
#include <vector>

#include "tests/roofline/launches.h"

namespace pentatron::roofline {

struct RecordedStep {
  std::vector<Launch> launches;
  int64_t tokens = 0;
  double model_flops = 0; ///< as MFU counts them (trainer/step_flops.h)
  int64_t parameters = 0;
  int64_t peak_bytes = 0; ///< of tensors on the device
  /// By step up to this one: allocations of memory that the driver would have been asked for.
  std::vector<int64_t> segments;
};

/// Records a step (from 1) of a run with these settings ("model.num_layers=2"), on random tokens
/// and one rank. The model is built in full, without storage.
RecordedStep record_step(std::vector<std::string> settings, int number = 2);

} // namespace pentatron::roofline
