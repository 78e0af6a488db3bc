/// The AMX entry of the GEMM over tiles in scalar code, as an entry that the list does not have.
#pragma once

#include <string>

#include "pentatron/kernels/gemm/gemm_simd.h"
#include "tests/kernels/emulated_tiles.h"

#if defined(__x86_64__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized" // as in gemm_amx.cpp
#pragma GCC diagnostic ignored "-Wuninitialized"
#include "pentatron/kernels/gemm/amx_gemm.h"

namespace pentatron::kernels::testing {

inline Entry<GemmArgs> emulated_gemm_entry() {
  return {"amx_bf16_emulated", gemm_detail::refuse_avx512_bf16,
          [](const GemmArgs& args, const Context&) {
            gemm_detail::AmxGemm<EmulatedTiles>(args).run();
          }};
}

} // namespace pentatron::kernels::testing

#else

namespace pentatron::kernels::testing {

inline Entry<GemmArgs> emulated_gemm_entry() {
  return {"amx_bf16_emulated", gemm_detail::refuse_amx_bf16, gemm_detail::run_amx_bf16};
}

} // namespace pentatron::kernels::testing

#endif
