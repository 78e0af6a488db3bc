/// Measured selections are kept in one file for each kind of machine and build of the program, the
/// newest 16, so that a run need not measure again. The files may be deleted at any time.
#pragma once

#include <filesystem>
#include <string>

#include "pentatron/kernels/selection/measure.h"

namespace pentatron::kernels {

/// kernels-<digest>.json in $XDG_CACHE_HOME/pentatron or ~/.cache/pentatron; empty if neither
/// variable is set. The digest is of the processor's name and features, PENTATRON_CPU,
/// num_threads(), `versions` (of the libraries that entries call) and this program's file.
std::filesystem::path selection_cache_file(const std::string& versions);

struct FoundSelection {
  Selection selection;
  std::vector<Measurement> measured; ///< empty if the file had all choices
  size_t unmeasured = 0;             ///< Completion::unmeasured
  double seconds = 0;                ///< spent with measuring
};

/// The selection of `file`, completed by measuring what it lacks, and then written back. A file
/// that is missing, damaged, or names an entry that this machine refuses counts as empty; one that
/// cannot be written is ignored. With an empty path everything is measured and nothing is kept.
FoundSelection find_selection(const std::filesystem::path& file,
                              const MeasureOptions& options = {});

} // namespace pentatron::kernels
