/// The kernels that a run uses: measured once for each machine, the same on all ranks, and stored
/// with the run, so a resumed run computes the same bits.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include <c10/core/Device.h>

#include "pentatron/comm/group.h"
#include "pentatron/trainer/config.h"

namespace pentatron::trainer {

/// Where this machine's measured choices are kept; empty: nowhere.
std::filesystem::path kernel_cache_file();

/// The kernel choices stored in a checkpoint.
struct StoredKernels {
  std::optional<std::string> text; ///< none: of converted weights, or the file is damaged
  bool measured = false;           ///< by a run with kernels=auto
  std::string problem;             ///< of a damaged file
};
StoredKernels stored_kernels(const std::filesystem::path& checkpoint);

/// Makes the choice of rank 0 that of all ranks and uses it in this process; returns it as text for
/// kKernelsFile (run_files.h), in logger.dir and in checkpoints: on CPUs an entry for every class
/// that the run meets. A run that resumes `checkpoint` takes the choices in it, but with
/// kernels=order not those of a run with kernels=auto; else those measured. List order decides
/// with kernels=order, and where there is no choice. Logs the choices that differ from list order,
/// and warns if resuming is not bit-exact. Collective over `world`.
std::string choose_kernels(const Config& config, at::Device device,
                           const std::optional<std::filesystem::path>& checkpoint,
                           const comm::Group& world);
/// Like choose_kernels(), for commands that do not save or resume. Does not say which.
void choose_kernels_quietly(const Config& config, at::Device device, const comm::Group& world);

} // namespace pentatron::trainer
