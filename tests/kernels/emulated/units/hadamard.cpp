// The Hadamard transform on the CPU, thread by thread, as one more entry of its list.
#include "tests/kernels/emulated/unit.h"

#include "pentatron/kernels/quantize/hadamard.cpp"
#ifndef PENTATRON_TESTS_ON_GPU
#include "pentatron/kernels/quantize/hadamard_cuda.cu"
#endif
