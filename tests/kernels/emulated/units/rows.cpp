// Sums of rows on the CPU, thread by thread, as one more entry of its list.
#include "tests/kernels/emulated/unit.h"

#include "pentatron/kernels/rows/rows.cpp"
#ifndef PENTATRON_TESTS_ON_GPU
#include "pentatron/kernels/rows/rows_cuda.cu"
#endif
