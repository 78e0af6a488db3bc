#include "pentatron/kernels/attention/attention_simd.h"

#if defined(__x86_64__)

#if defined(__GNUC__) && !defined(__clang__)
// g++ 12 warns of its own intrinsics (its bug 105593), also in templates that are compiled at the
// end of the file.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

#include "pentatron/kernels/attention/attention_blocks.h"
#include "pentatron/kernels/attention/avx512_products.h"

namespace pentatron::kernels::attention_detail {

std::string refuse_avx512(const AttentionShape& s, const Context& context) {
  if (!cpu_features().avx512) return "needs AVX-512 (F, BW, DQ, VL)";
  if (s.dtype == DType::kFloat16) return "supports float32 and bfloat16 only";
  if (s.dtype == DType::kBFloat16 && !cpu_features().avx512_bf16) return "needs AVX512-BF16";
  return refuse_common(s, context);
}

void forward_avx512(const AttentionForward& args, const Context&) {
  if (args.shape.dtype == DType::kBFloat16) {
    run_forward<Avx512Products<true>>(args);
  } else {
    run_forward<Avx512Products<false>>(args);
  }
}

void backward_avx512(const AttentionBackward& args, const Context&) {
  if (args.shape.dtype == DType::kBFloat16) {
    run_backward<Avx512Products<true>>(args);
  } else {
    run_backward<Avx512Products<false>>(args);
  }
}

} // namespace pentatron::kernels::attention_detail

#else // not x86-64

namespace pentatron::kernels::attention_detail {

std::string refuse_avx512(const AttentionShape&, const Context&) {
  return "needs an x86-64 processor";
}
void forward_avx512(const AttentionForward&, const Context&) {}
void backward_avx512(const AttentionBackward&, const Context&) {}

} // namespace pentatron::kernels::attention_detail

#endif
