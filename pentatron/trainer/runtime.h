/// What a configuration means on this machine: types, devices, threads, peaks.
#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

#include "pentatron/trainer/config.h"
#include "pentatron/trainer/metrics/peak.h"

namespace pentatron::trainer {

at::ScalarType scalar_type(Precision precision);

/// Throws ConfigError for device=cuda where this build or machine has none.
at::Device choose_device(DeviceKind kind);

/// Compute threads of this process; 0: the cores that it is bound to, or an equal share of all
/// cores for each of the `local_processes` of this machine.
void set_compute_threads(int64_t num_threads, int local_processes = 1);

/// The peak that MFU is measured against: as configured, known for the GPU, or measured on the CPU
/// (under half a second).
std::optional<Peak> find_peak(const Config& config, at::Device device);

/// Measures a matrix product as training does it, in the given type.
Peak measure_gemm_peak(Precision precision);

} // namespace pentatron::trainer
