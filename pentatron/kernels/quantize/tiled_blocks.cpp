#include "pentatron/kernels/quantize/tiled_blocks.h"

#include "pentatron/base/error.h"
#include "pentatron/kernels/common/dispatch.h"
#include "pentatron/kernels/common/refuse.h"
#include "pentatron/kernels/quantize/tiled_blocks_entries.h"

namespace pentatron::kernels {

namespace {

#ifdef PENTATRON_CUDA
std::string refuse_doubles_or_no_cuda(const TiledBlocks& args, const Context& context) {
  return args.dtype == DType::kFloat64 ? "does not support float64"
                                       : refuse_unless_cuda(args, context);
}
#endif

constexpr Entry<TiledBlocks> kTiledEntries[] = {
#ifdef PENTATRON_CUDA
    {"cuda", refuse_doubles_or_no_cuda, TiledBlocksCuda::run},
#endif
    {"reference", refuse_unless_cpu, TiledBlocksReference::run},
};

int64_t filled_to(int64_t size, int64_t multiple) {
  return (size + multiple - 1) / multiple * multiple;
}

} // namespace

std::span<const Entry<TiledBlocks>> tiled_blocks_entries() {
  return kTiledEntries;
}

ScaleTiles scale_tiles(QuantRecipe recipe, int64_t rows, int64_t stride) {
  const int64_t block = traits(recipe).block_cols;
  return {filled_to(rows, 128), filled_to((stride + block - 1) / block, 4)};
}

void tiled_blocks(const TiledBlocks& args, const Context& context) {
  if (args.rows < 0 || args.cols < 0 || args.stride < (args.transposed ? args.rows : args.cols) ||
      args.stride % kTiledStride != 0)
    raise<ShapeError>("tiled_blocks of [{}, {}] in rows of {}: a size is too small, or no multiple "
                      "of {}",
                      args.rows, args.cols, args.stride, kTiledStride);
  const bool fp4 = traits(args.recipe).two_levels();
  if (!fp4 && args.recipe != QuantRecipe::kMxfp8)
    raise<ShapeError>("tiled_blocks: {} has no scales in tiles", traits(args.recipe).name);
  if (!fp4 && args.stochastic != nullptr)
    raise<ShapeError>("tiled_blocks: {} is rounded to the nearest", traits(args.recipe).name);
  if (reinterpret_cast<uintptr_t>(args.codes) % 16 != 0)
    raise<ShapeError>("tiled_blocks: the address of the codes is no multiple of 16");
  run_first("tiled_blocks", tiled_blocks_entries(), args, context);
}

} // namespace pentatron::kernels
