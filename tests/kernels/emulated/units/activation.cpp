// Activations on the CPU, thread by thread, as one more entry of its list.
#include "tests/kernels/emulated/unit.h"

#include "pentatron/kernels/activation/activation.cpp"
#include "pentatron/kernels/activation/activation_cuda.cu"
