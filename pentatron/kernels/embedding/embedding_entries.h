/// The implementations behind embedding.h, one namespace each; only the lists of embedding.cpp use
/// them.
#pragma once

#include "pentatron/kernels/embedding/embedding.h"

namespace pentatron::kernels {
/// CUDA sorts tokens by their rows, so many in a block.
inline constexpr int kSortTile = 1024;
} // namespace pentatron::kernels

#define PENTATRON_EMBEDDING_FUNCTIONS                                                              \
  void forward(const EmbeddingArgs& a, const Context& context);                                    \
  void gradient(const EmbeddingGradientArgs& a, const Context& context);

namespace pentatron::kernels::embedding_reference {
PENTATRON_EMBEDDING_FUNCTIONS
}
namespace pentatron::kernels::embedding_avx2 {
PENTATRON_EMBEDDING_FUNCTIONS
}
namespace pentatron::kernels::embedding_avx512 {
PENTATRON_EMBEDDING_FUNCTIONS
}
namespace pentatron::kernels::embedding_cuda {
PENTATRON_EMBEDDING_FUNCTIONS
}

#undef PENTATRON_EMBEDDING_FUNCTIONS
