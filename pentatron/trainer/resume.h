/// Compares a run with the checkpoint that it loads, before the run starts (`check_run`) and when
/// it starts.
#pragma once

#include <string>
#include <vector>

#include "pentatron/trainer/config.h"

namespace pentatron::trainer {

/// Throws ConfigError if the checkpoint in `folder` was trained with another tokenizer
/// (checkpoint.check_tokenizer). `saved` may be empty: of converted weights.
void check_digest(const CheckpointConfig& config, const std::string& folder,
                  const std::string& saved, const std::string& own);

/// Sentences about data that is not what the checkpoint in `folder` saw: settings that differ, and
/// files with other content. `data_files` are those of this run, as data::to_json() writes them.
std::vector<std::string> data_changes(const Config& saved, const Config& config,
                                      const std::string& folder, const std::string& data_files);

} // namespace pentatron::trainer
