/// What this machine is, and what keeps it from being faster: the data of `pentatron doctor`.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace pentatron::trainer {

struct Cache {
  int level = 0;
  std::string type; ///< Data, Instruction, Unified
  int64_t bytes = 0;
  int64_t shared_by = 1; ///< logical processors
};

/// What Linux tells; 0, empty or none where it does not.
struct Machine {
  std::string cpu_name;
  int64_t sockets = 0;
  int64_t cores = 0;               ///< physical
  int64_t processors = 0;          ///< logical
  int64_t usable = 0;              ///< logical processors that this process may run on
  std::optional<double> cpu_quota; ///< processors that its control group may keep busy
  std::vector<std::string>
      features; ///< of those that matter here: avx2, fma, avx512f, avx512_bf16, amx_bf16, ...
  std::vector<Cache> caches; ///< of the first processor
  int64_t memory_bytes = 0;
  int64_t available_bytes = 0;
  std::optional<int64_t> memory_limit_bytes; ///< the smallest of its control groups
  int64_t memory_used_bytes = 0;             ///< of the group with that limit, without cached files
  std::optional<int64_t> memory_limit_free_bytes; ///< the least that a limit of a group leaves
  int64_t swap_bytes = 0;
  int64_t swap_used_bytes = 0;
  int64_t shared_memory_bytes = 0; ///< free in /dev/shm
  std::string governor;            ///< cpufreq's, of the first processor
  std::string huge_pages;          ///< always, madvise or never
  double load = 0;                 ///< runnable threads, mean of the last minute
  int64_t numa_nodes = 0;

  bool has(const std::string& feature) const;
};

/// Reads /proc and /sys below `root`.
Machine read_machine(const std::filesystem::path& root = "/");

/// Processors that a process can keep busy which may run on `usable` of them: at least 1, and the
/// quota of its control group to the nearest number.
int64_t processors_for_compute(int64_t usable, std::optional<double> cpu_quota);

/// Memory that a run may take: what is available, with free swap, inside the limit of the control
/// group. None if Linux does not tell.
std::optional<int64_t> free_memory_bytes(const Machine& machine);

/// One thing to know, and what to do about it.
struct Finding {
  std::string what;
  std::string remedy;
};

/// What the machine itself does not know.
struct Setting {
  int64_t threads = 0; ///< compute threads; 0 if not decided
  bool release_build = true;
  bool cuda_build = false;
  bool has_gpu = false;
  std::filesystem::path folder = "."; ///< where results go
};

/// What would make this machine faster or keep a run from failing, the weightiest first; empty if
/// nothing is known.
std::vector<Finding> find_slowdowns(const Machine& machine, const Setting& setting);

/// Whether this file was compiled with optimisation.
bool is_release_build();

/// Several lines of "name  value" for a person.
std::string describe(const Machine& machine);

} // namespace pentatron::trainer
