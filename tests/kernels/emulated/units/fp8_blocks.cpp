// FP8 codes with scales of blocks on the CPU, thread by thread, as one more entry of their list.
#include "tests/kernels/emulated/unit.h"

#include "pentatron/kernels/quantize/fp8_blocks.cpp"
#ifndef PENTATRON_TESTS_ON_GPU
#include "pentatron/kernels/quantize/fp8_blocks_cuda.cu"
#endif
