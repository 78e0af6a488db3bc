// Everything from outside is included before the target region, so that no function of another
// header is compiled for avx2.
#include "pentatron/kernels/cross_entropy/cross_entropy_entries.h"

#if defined(__x86_64__)

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include <immintrin.h>

#include "pentatron/kernels/simd/parallel.h"
#include "pentatron/kernels/simd/scalar.h"

#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#pragma GCC optimize("fp-contract=off")

#include "pentatron/kernels/simd/vec_avx2.h"

#define PENTATRON_ISA avx2
#define PENTATRON_CROSS_ENTROPY cross_entropy_avx2
#include "pentatron/kernels/cross_entropy/cross_entropy_body.h"
#include "pentatron/kernels/simd/exp_body.h"

#pragma GCC pop_options

#endif
