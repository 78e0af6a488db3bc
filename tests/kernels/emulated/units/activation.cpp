// Activations on the CPU, thread by thread, as one more entry of its list.
#include "tests/kernels/emulated/unit.h"

#include "pentatron/kernels/activation/activation.cpp"
#ifndef PENTATRON_TESTS_ON_GPU
#include "pentatron/kernels/activation/activation_cuda.cu"
#endif
