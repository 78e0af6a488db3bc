/// What this build of the kernels has.
#pragma once

namespace pentatron::kernels {

/// Whether it has entries for CUDA, wherever it runs.
bool built_with_cuda();

} // namespace pentatron::kernels
