/// In which keys two configurations differ, and which of them matter to whom.
#pragma once

#include <set>
#include <string>

#include "pentatron/comm/group.h"
#include "pentatron/config/field.h"
#include "pentatron/trainer/config.h"

namespace pentatron::trainer {

/// "key=1 and not 2, ..." of the keys that differ and mean one of these on resuming.
std::string differences(const Config& one, const Config& other,
                        const std::set<config::OnResume>& meanings);

/// The values of `one` at those keys, as assignments: "key=1 and key=2".
std::string assignments(const Config& one, const Config& other,
                        const std::set<config::OnResume>& meanings);

/// The configuration, if all ranks have the same: others would train something that nobody asked
/// for, or not even form the same groups. Collective; throws CommError.
Config equal_config(Config config, const comm::Group& world);

} // namespace pentatron::trainer
