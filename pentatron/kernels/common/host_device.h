/// Marks functions that CUDA kernels call as well as the CPU.
#pragma once

#ifdef __CUDACC__
#define PT_HOST_DEVICE __host__ __device__
#else
#define PT_HOST_DEVICE
#endif
