/// Which launcher started this process, and as which rank: torchrun, mpirun, srun or none.
///
/// A launcher assigns ranks to processes through environment variables. torchrun (and other
/// launchers that follow torch's convention) sets RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR,
/// MASTER_PORT; Open MPI's mpirun sets OMPI_COMM_WORLD_*; srun sets SLURM_PROCID and similar
/// variables. A shell of sbatch or salloc is not a step of srun, so it starts one rank. If two
/// launchers set variables, they must agree, except for torchrun under srun or mpirun: there the
/// outer variables count its agents, one per machine.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "pentatron/config/field.h"

namespace pentatron::comm {

enum class Launcher : uint8_t { kNone, kTorchrun, kMpirun, kSrun };
constexpr auto enum_names(Launcher) {
  return std::array{
      config::name(Launcher::kNone, "none"), config::name(Launcher::kTorchrun, "torchrun"),
      config::name(Launcher::kMpirun, "mpirun"), config::name(Launcher::kSrun, "srun")};
}

struct Launch {
  Launcher launcher = Launcher::kNone;
  int rank = 0;
  int world_size = 1;
  int local_rank = 0; ///< among the ranks of this machine
  int local_size = 1;
  std::string master_addr; ///< empty where the launcher names none
  int master_port = 0;
  std::string job; ///< the launcher's name for this run, or empty

  bool spans_machines() const { return local_size < world_size; }
  /// "rank 3 of 8 by torchrun"
  std::string describe() const;
};

using Environment = std::map<std::string, std::string, std::less<>>;

/// Throws ConfigError if variables are missing, invalid or contradictory.
Launch detect_launch(const Environment& environment);
/// Calls detect_launch() with the environment of this process.
Launch detect_launch();

/// The environment of this process.
Environment process_environment();

} // namespace pentatron::comm
