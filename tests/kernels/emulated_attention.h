/// The AMX entry of attention over tiles in scalar code, which the list does not have.
#pragma once

#include "pentatron/kernels/attention/attention_simd.h"
#include "tests/kernels/emulated_tiles.h"

#if defined(__x86_64__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized" // as in attention_amx.cpp
#pragma GCC diagnostic ignored "-Wuninitialized"
#include "pentatron/kernels/attention/attention_blocks.h"
#include "pentatron/kernels/attention/tile_products.h"

namespace pentatron::kernels::testing {

inline constexpr auto emulated_attention_forward =
    attention_detail::run_forward<attention_detail::TileProducts<EmulatedTiles>>;
inline constexpr auto emulated_attention_backward =
    attention_detail::run_backward<attention_detail::TileProducts<EmulatedTiles>>;
inline std::string refuse_emulated_attention(const AttentionShape& shape) {
  return attention_detail::refuse_avx512(shape, {});
}

} // namespace pentatron::kernels::testing

#else

namespace pentatron::kernels::testing {

inline void emulated_attention_forward(const AttentionForward&) {}
inline void emulated_attention_backward(const AttentionBackward&) {}
inline std::string refuse_emulated_attention(const AttentionShape& shape) {
  return attention_detail::refuse_amx(shape, {});
}

} // namespace pentatron::kernels::testing

#endif
