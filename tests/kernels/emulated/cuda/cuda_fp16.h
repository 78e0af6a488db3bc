/// In place of CUDA's header where kernels are compiled for the CPU.
#include "tests/kernels/emulated/emulation.h"
