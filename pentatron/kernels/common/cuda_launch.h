/// What every CUDA entry needs around its launches. Free of CUDA headers.
#pragma once

namespace pentatron::kernels {

/// Throws Error naming `op` if `code` (a cudaError_t) is not success; `text` is CUDA's message
/// about it.
void check_cuda_launch(const char* op, int code, const char* text);

} // namespace pentatron::kernels
