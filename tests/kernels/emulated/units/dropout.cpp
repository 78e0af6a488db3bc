// Dropout on the CPU, thread by thread, as one more entry of its list.
#include "tests/kernels/emulated/unit.h"

#include "pentatron/kernels/dropout/dropout.cpp"
#ifndef PENTATRON_TESTS_ON_GPU
#include "pentatron/kernels/dropout/dropout_cuda.cu"
#endif
