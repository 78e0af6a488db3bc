#include "pentatron/kernels/attention/attention_simd.h"

#if defined(__x86_64__)

#include "pentatron/kernels/attention/attention_blocks.h"
#include "pentatron/kernels/attention/avx2_products.h"

namespace pentatron::kernels::attention_detail {

std::string refuse_avx2(const AttentionShape& s, const Context& context) {
  if (!cpu_features().avx2) return "needs AVX2 and FMA";
  return refuse_common(s, context);
}

void forward_avx2(const AttentionForward& args, const Context&) {
  visit_float_dtype(args.shape.dtype, [&]<class T>(T) { run_forward<Avx2Products<T>>(args); });
}

void backward_avx2(const AttentionBackward& args, const Context&) {
  visit_float_dtype(args.shape.dtype, [&]<class T>(T) { run_backward<Avx2Products<T>>(args); });
}

} // namespace pentatron::kernels::attention_detail

#else // not x86-64

namespace pentatron::kernels::attention_detail {

std::string refuse_avx2(const AttentionShape&, const Context&) {
  return "needs an x86-64 processor";
}
void forward_avx2(const AttentionForward&, const Context&) {}
void backward_avx2(const AttentionBackward&, const Context&) {}

} // namespace pentatron::kernels::attention_detail

#endif
