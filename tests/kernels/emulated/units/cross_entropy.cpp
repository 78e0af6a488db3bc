// Cross-entropy on the CPU, thread by thread, as one more entry of its list.
#include "tests/kernels/emulated/unit.h"

#include "pentatron/kernels/cross_entropy/cross_entropy.cpp"
#ifndef PENTATRON_TESTS_ON_GPU
#include "pentatron/kernels/cross_entropy/cross_entropy_cuda.cu"
#endif
