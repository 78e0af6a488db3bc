/// Compiles one templated body for AVX2 and for AVX-512. Before the include:
///   #define PT_SIMD_BODY "pentatron/kernels/<op>/<op>_simd_body.h"
///   #define PT_SIMD_NO_CONTRACTION   if a * b + c is to round twice, as in the reference; else the
///                                    compiler may make it a fused multiply-add
/// The body sees the vector types VF and VD of common/vector_body.h and lands in the anonymous
/// namespaces pentatron::kernels::avx2 and ::avx512. Only what is defined between the pragmas uses
/// the instruction set; everything that the body includes must already be included before, so that
/// no inline function of a header is compiled for a processor that the program may not run on. The
/// body therefore includes nothing else, and has no include guard.
// g++ 12 takes the deliberately undefined operands of its own intrinsics for mistakes (GCC bug
// 105593), also in templates that are compiled at the end of the file.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "pentatron/kernels/common/scalar.h"

#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#ifdef PT_SIMD_NO_CONTRACTION
#pragma GCC optimize("fp-contract=off")
#endif
#define PT_LANES 8
namespace pentatron::kernels::avx2 {
namespace {
#include "pentatron/kernels/common/vector_body.h"
#include PT_SIMD_BODY
} // namespace
} // namespace pentatron::kernels::avx2
#undef PT_LANES
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")
#ifdef PT_SIMD_NO_CONTRACTION
#pragma GCC optimize("fp-contract=off")
#endif
#define PT_LANES 16
namespace pentatron::kernels::avx512 {
namespace {
#include "pentatron/kernels/common/vector_body.h"
#include PT_SIMD_BODY
} // namespace
} // namespace pentatron::kernels::avx512
#undef PT_LANES
#pragma GCC pop_options
