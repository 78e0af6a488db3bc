#include "pentatron/kernels/attention/attention_simd.h"

#if defined(__x86_64__)

#if defined(__GNUC__) && !defined(__clang__)
// g++ 12 warns of its own intrinsics (its bug 105593), also in templates that are compiled at the
// end of the file.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

#include "pentatron/kernels/attention/attention_blocks.h"
#include "pentatron/kernels/attention/tile_products.h"

namespace pentatron::kernels::attention_detail {

std::string refuse_amx(const AttentionShape& s, const Context& context) {
  if (s.dtype != DType::kBFloat16) return "supports bfloat16 only";
  if (!cpu_features().amx_bf16) return "needs AMX (amx-tile, amx-bf16)";
  return refuse_avx512(s, context);
}

void forward_amx(const AttentionForward& args, const Context&) {
  run_forward<TileProducts<AmxTiles>>(args);
}
void backward_amx(const AttentionBackward& args, const Context&) {
  run_backward<TileProducts<AmxTiles>>(args);
}

} // namespace pentatron::kernels::attention_detail

#else // not x86-64

namespace pentatron::kernels::attention_detail {

std::string refuse_amx(const AttentionShape&, const Context&) {
  return "needs an x86-64 processor";
}
void forward_amx(const AttentionForward&, const Context&) {}
void backward_amx(const AttentionBackward&, const Context&) {}

} // namespace pentatron::kernels::attention_detail

#endif
