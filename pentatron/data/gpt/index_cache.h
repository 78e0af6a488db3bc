/// Keeps the arrays of GptIndex in files, for runs that start often. A file is found by what it was
/// made from: the lengths of the sequences and all options, not names or times.
#pragma once

#include <filesystem>
#include <memory>
#include <span>

#include "pentatron/data/gpt/gpt_index.h"

namespace pentatron::data {

/// build_gpt_index(), from a file of `folder` if one has it. Else it is built and written: aside
/// and renamed, so that any number of processes may start at once, in the folder of one machine or
/// of several. A file that is damaged is built again; a folder that cannot be written is a warning.
GptIndex cached_gpt_index(const std::filesystem::path& folder, std::span<const int32_t> lengths,
                          int64_t first_sequence, const GptIndexOptions& options);

} // namespace pentatron::data
