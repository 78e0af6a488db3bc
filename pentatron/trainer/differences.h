/// In which keys two configurations differ, and which of them matter to whom.
#pragma once

#include <functional>
#include <string>

#include "pentatron/comm/group.h"
#include "pentatron/trainer/config.h"

namespace pentatron::trainer {

/// "key=1 and not 2, ..." of the keys that differ and for which `counts` holds.
std::string differences(const Config& one, const Config& other,
                        const std::function<bool(const std::string& key)>& counts);

/// What decides which samples come when, and which numbers are drawn.
bool is_data(const std::string& key);
/// What decides which tensors the model has and what they mean.
bool is_model(const std::string& key);
/// A saved run can go on with other settings, but not with another model or kind of state.
bool is_identity(const std::string& key);

/// The configuration, if all ranks have the same: others would train something that nobody asked
/// for, or not even form the same groups. Collective; throws CommError.
Config equal_config(Config config, const comm::Group& world);

} // namespace pentatron::trainer
