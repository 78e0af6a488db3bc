/// Memory that CPU and GPU share, for tests on a GPU.
#pragma once

#include <cstddef>

namespace pentatron::kernels::testing {

/// Whether a GPU answers. The first call looks for it.
bool gpu_answers();

/// Waits for all work on the GPU. Throws Error if some of it failed.
void wait_for_gpu();

} // namespace pentatron::kernels::testing
