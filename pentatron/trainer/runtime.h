/// Applies a configuration to this machine: data types, devices, threads, peak performance.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include <ATen/core/Tensor.h>

#include "pentatron/comm/group.h"
#include "pentatron/comm/launch.h"
#include "pentatron/trainer/config.h"
#include "pentatron/trainer/metrics/hardware.h"
#include "pentatron/trainer/metrics/peak.h"

namespace pentatron::trainer {

at::ScalarType scalar_type(Precision precision);

/// Throws ConfigError for device=cuda where this build or machine has none.
at::Device choose_device(DeviceKind kind);
/// Whether ranks run on CPUs; of a GPU that is not there, false.
bool on_cpu(DeviceKind kind);

/// Free memory of this machine for ranks on CPUs; none: they take a GPU, or nothing is known.
std::optional<int64_t> free_bytes_of(DeviceKind kind);

/// Which GPU of its machine a rank that is a process of its own takes; none if `device` or this
/// machine leaves it to the CPU. Throws ConfigError where ranks would have to share a GPU and
/// dist.gpu_messages does not allow it.
std::optional<int> choose_gpu(const Config& config, const comm::Launch& launch);

/// The device of a rank of `world`.
at::Device rank_device(DeviceKind kind, const comm::Group& world);

/// Threads that the user has set for each rank, and where: train.num_threads or OMP_NUM_THREADS.
struct WantedThreads {
  int64_t number = 0; ///< 0: not set
  std::string_view key = {};
};
WantedThreads wanted_threads(int64_t num_threads);

/// Throws ConfigError if wanted_threads() are far more than this machine has cores.
void check_threads(int64_t num_threads);

/// Compute threads of this process, as check_threads() takes them; 0: OMP_NUM_THREADS if it is set,
/// else the processors that it is bound to, or an equal share of all for each of the
/// `local_processes` of this machine; never more than the quota of its control group.
void set_compute_threads(int64_t num_threads, int local_processes = 1);

/// Processors that this process may keep busy.
struct OwnProcessors {
  int64_t all = 1;
  int64_t share = 1; ///< without those of the other ranks of the machine, unless ranks are bound
};
OwnProcessors own_processors(int local_processes);

/// A warning about wanted_threads() on CPUs, with what to do; empty: none. `by_torchrun`: which
/// sets OMP_NUM_THREADS=1 for several processes, unless the user has set it.
std::string thread_warning(int64_t num_threads, const OwnProcessors& own, bool by_torchrun);

/// Why times that were measured with all compute threads are uncertain: "other programs were
/// running".
Finding disturbance();

/// The peak that MFU is measured against: as configured, known for the GPU, or measured on the CPU
/// (about half a second).
std::optional<Peak> find_peak(const Config& config, at::Device device);

/// Logs what MFU is measured against, or that there is nothing.
void tell_peak(const std::optional<Peak>& peak);

/// The fastest matrix product y = x w^T of the type: of all fast entries of the GEMM and of
/// LibTorch, in three shapes. Its source names the winner.
Peak measure_gemm_peak(Precision precision);

} // namespace pentatron::trainer
