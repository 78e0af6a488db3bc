#include "pentatron/kernels/optimizer/optimizer.h"

#include "pentatron/kernels/common/dispatch.h"
#include "pentatron/kernels/optimizer/optimizer_entries.h"
#include "pentatron/kernels/simd/refuse.h"

namespace pentatron::kernels {

using simd::refuse_unless_cpu;

std::span<const Entry<AdamWArgs>> adamw_entries() {
  static const Entry<AdamWArgs> entries[] = {
      {"reference", refuse_unless_cpu, optimizer_reference::adamw},
  };
  return entries;
}

std::span<const Entry<SgdArgs>> sgd_entries() {
  static const Entry<SgdArgs> entries[] = {
      {"reference", refuse_unless_cpu, optimizer_reference::sgd},
  };
  return entries;
}

void adamw(const AdamWArgs& args, const Context& context) {
  if (args.dtype != acc_dtype(args.dtype)) {
    raise<ShapeError>("adamw: dtype={} is not float32 or float64", name(args.dtype));
  }
  if (args.step < 1) raise<ShapeError>("adamw: step={} is less than 1", args.step);
  run_first("adamw", adamw_entries(), args, context);
}

void sgd(const SgdArgs& args, const Context& context) {
  if (args.dtype != acc_dtype(args.dtype)) {
    raise<ShapeError>("sgd: dtype={} is not float32 or float64", name(args.dtype));
  }
  if (args.n > 0 && (args.momentum != 0) != (args.momentum_buffer != nullptr)) {
    raise<ShapeError>("sgd: momentum={} {} momentum_buffer", args.momentum,
                      args.momentum_buffer ? "takes no" : "needs a");
  }
  run_first("sgd", sgd_entries(), args, context);
}

} // namespace pentatron::kernels
