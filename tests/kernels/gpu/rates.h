/// How fast the kernels are, for scripts/gpu_check.
#pragma once

namespace pentatron::kernels::testing {

/// Times the operators over rows, of the loss and of the optimizer on inputs of 16384 rows in fp32
/// and bf16: the CUDA entry where a GPU answers, else the fastest of the CPU. Prints one JSON
/// object: the bandwidth of a copy (bytes read and written a second), and for each operator its
/// entry, the bytes that it must move, and the seconds of its fastest run. Returns the exit status.
int print_rates();

} // namespace pentatron::kernels::testing
