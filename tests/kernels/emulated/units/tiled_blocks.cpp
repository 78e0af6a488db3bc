// MXFP8 and NVFP4 codes with scales in tiles on the CPU, thread by thread, as one more entry of
// their list.
#include "tests/kernels/emulated/unit.h"

#include "pentatron/kernels/quantize/tiled_blocks.cpp"
#ifndef PENTATRON_TESTS_ON_GPU
#include "pentatron/kernels/quantize/tiled_blocks_cuda.cu"
#endif
