/// How often each expert was chosen in the last step of a run: `state.expert_choices` of a
/// manifest, an object with a list for each layer that has experts.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "pentatron/checkpoint/sharded/manifest.h"

namespace pentatron::checkpoint {

using ExpertChoices = std::map<std::string, std::vector<int64_t>, std::less<>>;

/// Empty if the state has none. Throws CheckpointError, naming the layer, unless every list has a
/// count, not negative, for each row of the layer's router.
ExpertChoices expert_choices(const Manifest& manifest, std::string_view origin);

} // namespace pentatron::checkpoint
