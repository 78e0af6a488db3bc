// Embedding and its gradient on the CPU, thread by thread, as one more entry of its list.
#include "tests/kernels/emulated/unit.h"

#include "pentatron/kernels/embedding/embedding_entries.h"

namespace pentatron::kernels::emulated_embedding {

void forward(const EmbeddingArgs& args, const Context& context) {
  embedding_cuda::forward(args, context);
}
void gradient(const EmbeddingGradientArgs& args, const Context& context) {
  embedding_cuda::gradient(args, WithWorkspace(args, context));
}

} // namespace pentatron::kernels::emulated_embedding

#define embedding_cuda emulated_embedding
#include "pentatron/kernels/embedding/embedding.cpp"
#undef embedding_cuda
#ifndef PENTATRON_TESTS_ON_GPU
#include "pentatron/kernels/embedding/embedding_cuda.cu"
#endif
