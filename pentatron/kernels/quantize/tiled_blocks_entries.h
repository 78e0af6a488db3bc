/// The implementations behind tiled_blocks.h; tiled_blocks.cpp orders them.
#pragma once

#include "pentatron/kernels/quantize/tiled_blocks.h"

namespace pentatron::kernels {

struct TiledBlocksReference {
  static void run(const TiledBlocks& args, const Context& context);
};

/// Only in builds with PENTATRON_CUDA.
struct TiledBlocksCuda {
  static void run(const TiledBlocks& args, const Context& context);
};

} // namespace pentatron::kernels
