#include "pentatron/kernels/optimizer/narrow.h"

#include "pentatron/kernels/common/dispatch.h"
#include "pentatron/kernels/common/refuse.h"
#include "pentatron/kernels/optimizer/optimizer_entries.h"

namespace pentatron::kernels {

std::span<const Entry<RoundByChanceArgs>> round_by_chance_entries() {
  static const Entry<RoundByChanceArgs> entries[] = {
#if defined(__x86_64__)
    {"avx512", refuse_float64_or_no_avx512, optimizer_avx512::round_by_chance},
    {"avx2", refuse_float64_or_no_avx2, optimizer_avx2::round_by_chance},
#endif
    {"reference", refuse_unless_cpu, optimizer_reference::round_by_chance},
#ifdef PENTATRON_CUDA
    {"cuda", refuse_unless_cuda, optimizer_cuda::round_by_chance},
#endif
  };
  return entries;
}

void round_by_chance(const RoundByChanceArgs& args, const Context& context) {
  if (args.dtype != acc_dtype(args.dtype))
    raise<ShapeError>("round_by_chance: dtype={} is not float32 or float64", name(args.dtype));
  if (args.root && args.type != NarrowType::kE4M3)
    raise<ShapeError>("round_by_chance: roots are stored in e4m3 only");
  if (args.rows > 0 && args.cols > 0)
    run_first("round_by_chance", round_by_chance_entries(), args, context);
}

} // namespace pentatron::kernels
