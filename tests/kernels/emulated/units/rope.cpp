// Rotary positions on the CPU, thread by thread, as one more entry of its list.
#include "tests/kernels/emulated/unit.h"

#include "pentatron/kernels/rope/rope.cpp"
#include "pentatron/kernels/rope/rope_cuda.cu"
