/// Notices at the start of a run: settings that have no effect, that make results depend on the
/// layout, or that the processor is slow with.
#pragma once

#include <string>
#include <vector>

#include "pentatron/kernels/contract.h"
#include "pentatron/trainer/config.h"

namespace pentatron::trainer {

/// One sentence for each, with what to try. `has_validation`: the data has a part for it.
std::vector<std::string> notices(const Config& config, int world_size, bool has_validation,
                                 const kernels::CpuFeatures& cpu = kernels::cpu_features());

/// The settings by which another layout, or another micro batch size, trains another model: "a=1
/// and b=2"; empty: none.
std::string keys_of_one_layout(const Config& config);

} // namespace pentatron::trainer
