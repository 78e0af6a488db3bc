/// The keys in which two configurations differ, and which of these differences matter.
#pragma once

#include <set>
#include <string>

#include "pentatron/comm/group.h"
#include "pentatron/config/field.h"
#include "pentatron/trainer/config.h"

namespace pentatron::trainer {

/// Returns "key=1 instead of 2, ..." for the keys that differ and whose OnResume is in `meanings`;
/// paths that are spelled differently, such as ./a and a/, are equal.
std::string differences(const Config& one, const Config& other,
                        const std::set<config::OnResume>& meanings);

/// The values of `one` at those keys: "key=1 and key=2".
std::string assignments(const Config& one, const Config& other,
                        const std::set<config::OnResume>& meanings);

/// Throws CheckpointError if a run with `config` cannot load the checkpoint in `folder`, which a
/// run with `saved` wrote: the model differs, or, with training state, the data types differ.
void check_saved(const Config& saved, const Config& config, bool has_training_state,
                 const std::string& folder);

/// Warns of keys of `config` that change what the weights in `where`, of the model `saved`,
/// compute: rotary_base, activation_func. Those of a new task (Field::of_task) are not named.
void tell_other_model(const models::ModelConfig& saved, const Config& config,
                      const std::string& where);

/// Returns `config` if it is the same on all ranks; otherwise throws CommError, because ranks with
/// different settings would form different groups or train different models. Collective.
Config equal_config(Config config, const comm::Group& world);

} // namespace pentatron::trainer
