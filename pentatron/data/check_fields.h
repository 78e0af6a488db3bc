/// Whether a type of dataset gives what a model reads, and how long its sequences are, known before
/// any file is read.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "pentatron/data/config.h"
#include "pentatron/data/field.h"

namespace pentatron::data {

/// What a dataset of this configuration gives. dataset.type=batches gives whatever its file has
/// and is taken to give `wanted`.
std::vector<BatchField> given_fields(const DatasetConfig& config,
                                     const std::vector<BatchField>& wanted);

/// Whether data of that type have the fields that a model reads, with other keys that suit it.
bool can_give(DatasetType type, const std::vector<BatchField>& wanted);
/// The type that makes them of text; none: only ready batches have them.
std::optional<DatasetType> type_for_text(const std::vector<BatchField>& wanted);

/// Tokens in the decoder's sequence of a sample whose first sequence has up to `input_length`.
int64_t target_length(const DatasetConfig& config, int64_t input_length);

/// Of the tokens of such samples, the share that have a target, where it is known before any data
/// is read; else 1.
double share_of_targets(const DatasetConfig& config);

/// Throws ConfigError for a field of `wanted` that the dataset does not give, with the settings of
/// a dataset that gives all of them.
void check_fields(const DatasetConfig& config, const std::vector<BatchField>& wanted);

} // namespace pentatron::data
