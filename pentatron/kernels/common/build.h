/// What this build of the kernels has.
#pragma once

#include <string>

namespace pentatron::kernels {

/// Whether it has entries for CUDA, wherever it runs.
bool built_with_cuda();

/// What GPU `device` calls itself: "NVIDIA H100 80GB HBM3". Empty in a build without CUDA, and if
/// there is no such GPU.
std::string gpu_name(int device);

} // namespace pentatron::kernels
