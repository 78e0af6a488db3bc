#include "pentatron/kernels/embedding/embedding_entries.h"

#if defined(__x86_64__)

#include "pentatron/kernels/common/parallel.h"

#define PT_SIMD_BODY "pentatron/kernels/embedding/embedding_simd_body.h"
#define PT_SIMD_NO_CONTRACTION
#include "pentatron/kernels/common/foreach_isa.h"

namespace pentatron::kernels::embedding_avx2 {

void forward(const EmbeddingArgs& a, const Context& c) {
  avx2::forward(a, c);
}
void gradient(const EmbeddingGradientArgs& a, const Context& c) {
  avx2::gradient(a, c);
}

} // namespace pentatron::kernels::embedding_avx2

namespace pentatron::kernels::embedding_avx512 {

void forward(const EmbeddingArgs& a, const Context& c) {
  avx512::forward(a, c);
}
void gradient(const EmbeddingGradientArgs& a, const Context& c) {
  avx512::gradient(a, c);
}

} // namespace pentatron::kernels::embedding_avx512

#endif
