/// The keys in which two configurations differ, and which of these differences matter.
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

/// Throws CheckpointError if a run with `config` cannot go on from what one with `saved` left in
/// `folder`: another model, or, with its training state, other types.
void check_saved(const Config& saved, const Config& config, bool has_training_state,
                 const std::string& folder);

/// The configuration, if all ranks have the same: others would train something that nobody asked
/// for, or not even form the same groups. Collective; throws CommError.
Config equal_config(Config config, const comm::Group& world);

} // namespace pentatron::trainer
