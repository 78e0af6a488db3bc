/// The implementations behind cross_entropy.h, one namespace each; only the lists of
/// cross_entropy.cpp use them.
#pragma once

#include "pentatron/kernels/cross_entropy/cross_entropy.h"

#define PENTATRON_CROSS_ENTROPY_FUNCTIONS                                                          \
  void stats(const CrossEntropyStatsArgs& a, const Context& context);                              \
  void rescale(const CrossEntropyRescaleArgs& a, const Context& context);                          \
  void loss(const CrossEntropyLossArgs& a, const Context& context);                                \
  void gradient(const CrossEntropyGradientArgs& a, const Context& context);                        \
  void fused(const CrossEntropyArgs& a, const Context& context);

namespace pentatron::kernels::cross_entropy_reference {
PENTATRON_CROSS_ENTROPY_FUNCTIONS
}
namespace pentatron::kernels::cross_entropy_avx2 {
PENTATRON_CROSS_ENTROPY_FUNCTIONS
}
namespace pentatron::kernels::cross_entropy_avx512 {
PENTATRON_CROSS_ENTROPY_FUNCTIONS
}
namespace pentatron::kernels::cross_entropy_cuda {
PENTATRON_CROSS_ENTROPY_FUNCTIONS
}

#undef PENTATRON_CROSS_ENTROPY_FUNCTIONS
