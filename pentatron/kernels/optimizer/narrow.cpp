#include "pentatron/kernels/optimizer/narrow.h"

#include "pentatron/kernels/common/dispatch.h"
#include "pentatron/kernels/common/refuse.h"
#include "pentatron/kernels/optimizer/optimizer_entries.h"

namespace pentatron::kernels {

std::span<const Entry<StoreNarrowArgs>> store_narrow_entries() {
  static const Entry<StoreNarrowArgs> entries[] = {
#if defined(__x86_64__)
    {"avx512", refuse_float64_or_no_avx512, optimizer_avx512::store_narrow},
    {"avx2", refuse_float64_or_no_avx2, optimizer_avx2::store_narrow},
#endif
    {"reference", refuse_unless_cpu, optimizer_reference::store_narrow},
#ifdef PENTATRON_CUDA
    {"cuda", refuse_unless_cuda, optimizer_cuda::store_narrow},
#endif
  };
  return entries;
}

std::span<const Entry<LoadNarrowArgs>> load_narrow_entries() {
  static const Entry<LoadNarrowArgs> entries[] = {
#if defined(__x86_64__)
    {"avx512", refuse_float64_or_no_avx512, optimizer_avx512::load_narrow},
    {"avx2", refuse_float64_or_no_avx2, optimizer_avx2::load_narrow},
#endif
    {"reference", refuse_unless_cpu, optimizer_reference::load_narrow},
#ifdef PENTATRON_CUDA
    {"cuda", refuse_unless_cuda, optimizer_cuda::load_narrow},
#endif
  };
  return entries;
}

void load_narrow(const LoadNarrowArgs& args, const Context& context) {
  if (args.dtype != acc_dtype(args.dtype))
    raise<ShapeError>("load_narrow: dtype={} is not float32 or float64", name(args.dtype));
  if (args.n > 0) run_first("load_narrow", load_narrow_entries(), args, context);
}

void store_narrow(const StoreNarrowArgs& args, const Context& context) {
  if (args.dtype != acc_dtype(args.dtype))
    raise<ShapeError>("store_narrow: dtype={} is not float32 or float64", name(args.dtype));
  if (args.root && args.type != NarrowType::kE4M3)
    raise<ShapeError>("store_narrow: roots are stored in e4m3 only");
  if (args.rows > 0 && args.cols > 0)
    run_first("store_narrow", store_narrow_entries(), args, context);
}

} // namespace pentatron::kernels
