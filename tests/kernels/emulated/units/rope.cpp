// Rotary positions on the CPU, thread by thread, as one more entry of its list.
#include "tests/kernels/emulated/unit.h"

#include "pentatron/kernels/rope/rope.cpp"
#ifndef PENTATRON_TESTS_ON_GPU
#include "pentatron/kernels/rope/rope_cuda.cu"
#endif
