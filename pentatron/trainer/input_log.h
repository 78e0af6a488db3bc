/// Logs the input of a run before its first step.
#pragma once

#include <cstdint>
#include <string>

#include "pentatron/data/dataset.h"
#include "pentatron/trainer/config.h"

namespace pentatron::trainer {

/// A line for each part of the data: documents, tokens, and how many epochs `train_samples` are.
std::string describe_parts(const data::Datasets& datasets, int64_t train_samples);

/// Logs the tokenizer, the data and its parts.
void log_input(const Config& config, const data::Datasets& datasets,
               const data::Tokenizer& tokenizer, int64_t train_samples);

/// Lists in logger.dir/skipped.jsonl every line that was left out, with its reason. A run that
/// leaves out nothing does not keep the list of its earlier start.
void write_skipped(const Config& config, const data::InputReport& report);

} // namespace pentatron::trainer
