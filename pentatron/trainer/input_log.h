/// What a run reads, told before its first step.
#pragma once

#include <cstdint>
#include <string>

#include "pentatron/data/dataset.h"
#include "pentatron/trainer/config.h"

namespace pentatron::trainer {

/// A line for each part of the data: documents, tokens, and how many epochs `train_samples` are.
std::string describe_parts(const data::Datasets& datasets, int64_t train_samples);

/// Logs the tokenizer, the data and its parts. The main rank also lists in
/// logger.dir/skipped.jsonl what was left out, if that was asked for.
void log_input(const Config& config, const data::Datasets& datasets,
               const data::Tokenizer& tokenizer, int64_t train_samples, bool main_rank);

} // namespace pentatron::trainer
