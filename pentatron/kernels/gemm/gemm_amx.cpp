#include "pentatron/kernels/gemm/gemm_simd.h"

#if defined(__x86_64__)

#if defined(__GNUC__) && !defined(__clang__)
// g++ 12 warns of its own intrinsics (its bug 105593), also in templates that are compiled at the
// end of the file.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

#include "pentatron/kernels/gemm/amx_gemm.h"

namespace pentatron::kernels::gemm_detail {

std::string refuse_amx_bf16(const GemmArgs& g, const Context& context) {
  if (!cpu_features().amx_bf16) return "needs AMX (amx-tile, amx-bf16)";
  return refuse_bf16(g, context);
}

void run_amx_bf16(const GemmArgs& g, const Context&) {
  AmxGemm<AmxTiles>(g).run();
}

} // namespace pentatron::kernels::gemm_detail

#else // not x86-64

namespace pentatron::kernels::gemm_detail {

std::string refuse_amx_bf16(const GemmArgs&, const Context&) {
  return "needs an x86-64 processor";
}
void run_amx_bf16(const GemmArgs&, const Context&) {}

} // namespace pentatron::kernels::gemm_detail

#endif
