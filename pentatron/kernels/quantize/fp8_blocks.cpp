#include "pentatron/kernels/quantize/fp8_blocks.h"

#include "pentatron/base/error.h"
#include "pentatron/kernels/common/dispatch.h"
#include "pentatron/kernels/common/refuse.h"
#include "pentatron/kernels/quantize/fp8_blocks_entries.h"

namespace pentatron::kernels {

namespace {

constexpr Entry<Fp8Blocks> kBlockEntries[] = {
#ifdef PENTATRON_CUDA
    {"cuda", refuse_unless_cuda, Fp8BlocksCuda::run},
#endif
    {"reference", refuse_unless_cpu, Fp8BlocksReference::run},
};

} // namespace

std::span<const Entry<Fp8Blocks>> fp8_blocks_entries() {
  return kBlockEntries;
}

void fp8_blocks(const Fp8Blocks& args, const Context& context) {
  const int64_t out_rows = args.transposed ? args.cols : args.rows;
  if (args.rows < 0 || args.cols < 0 || args.stride < (args.transposed ? args.rows : args.cols))
    raise<ShapeError>("fp8_blocks of [{}, {}] in rows of {}: a size is too small", args.rows,
                      args.cols, args.stride);
  if (args.recipe != QuantRecipe::kBlockwise1x128 && args.recipe != QuantRecipe::kBlockwise128x128)
    raise<ShapeError>("fp8_blocks: {} has no blocks of 128", traits(args.recipe).name);
  const bool square = args.recipe == QuantRecipe::kBlockwise128x128;
  const int64_t scales = square ? (args.stride + 127) / 128 : out_rows;
  if (args.scale_stride < scales)
    raise<ShapeError>("fp8_blocks: {} scales do not fit into a scale_stride of {}", scales,
                      args.scale_stride);
  run_first("fp8_blocks", fp8_blocks_entries(), args, context);
}

} // namespace pentatron::kernels
