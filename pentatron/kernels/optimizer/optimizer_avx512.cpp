// Everything from outside is included before the target region, so that no function of another
// header is compiled for avx512.
#include "pentatron/kernels/optimizer/optimizer_entries.h"

#if defined(__x86_64__)

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

// g++ 12 takes the undefined pass-through operands of its own intrinsics for mistakes (GCC bug
// 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>

#include "pentatron/kernels/simd/parallel.h"
#include "pentatron/kernels/simd/scalar.h"

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")
#pragma GCC optimize("fp-contract=off")

#include "pentatron/kernels/simd/vec_avx512.h"

#define PENTATRON_ISA avx512
#define PENTATRON_OPTIMIZER optimizer_avx512
#include "pentatron/kernels/optimizer/optimizer_body.h"

#pragma GCC pop_options

#endif
