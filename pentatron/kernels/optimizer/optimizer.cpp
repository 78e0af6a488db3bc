#include "pentatron/kernels/optimizer/optimizer.h"

#include "pentatron/kernels/common/dispatch.h"
#include "pentatron/kernels/common/refuse.h"
#include "pentatron/kernels/optimizer/optimizer_entries.h"

namespace pentatron::kernels {

namespace {

template <auto refuse, class Args>
std::string refuse_copy(const Args& args, const Context& context) {
  if (args.param_copy && (args.dtype == DType::kFloat64 || args.copy_dtype == DType::kFloat64)) {
    return "writes no copy of or in float64";
  }
  return refuse(args, context);
}

} // namespace

std::span<const Entry<AdamWArgs>> adamw_entries() {
  static const Entry<AdamWArgs> entries[] = {
#if defined(__x86_64__)
    {"avx512", refuse_copy<refuse_unless_avx512<AdamWArgs>>, optimizer_avx512::adamw},
    {"avx2", refuse_copy<refuse_unless_avx2<AdamWArgs>>, optimizer_avx2::adamw},
#endif
    {"reference", refuse_unless_cpu, optimizer_reference::adamw},
#ifdef PENTATRON_CUDA
    {"cuda", refuse_unless_cuda, optimizer_cuda::adamw},
#endif
  };
  return entries;
}

std::span<const Entry<SgdArgs>> sgd_entries() {
  static const Entry<SgdArgs> entries[] = {
#if defined(__x86_64__)
    {"avx512", refuse_copy<refuse_unless_avx512<SgdArgs>>, optimizer_avx512::sgd},
    {"avx2", refuse_copy<refuse_unless_avx2<SgdArgs>>, optimizer_avx2::sgd},
#endif
    {"reference", refuse_unless_cpu, optimizer_reference::sgd},
#ifdef PENTATRON_CUDA
    {"cuda", refuse_unless_cuda, optimizer_cuda::sgd},
#endif
  };
  return entries;
}

std::span<const Entry<LionArgs>> lion_entries() {
  static const Entry<LionArgs> entries[] = {
#if defined(__x86_64__)
    {"avx512", refuse_copy<refuse_unless_avx512<LionArgs>>, optimizer_avx512::lion},
    {"avx2", refuse_copy<refuse_unless_avx2<LionArgs>>, optimizer_avx2::lion},
#endif
    {"reference", refuse_unless_cpu, optimizer_reference::lion},
#ifdef PENTATRON_CUDA
    {"cuda", refuse_unless_cuda, optimizer_cuda::lion},
#endif
  };
  return entries;
}

void adamw(const AdamWArgs& args, const Context& context) {
  if (args.dtype != acc_dtype(args.dtype)) {
    raise<ShapeError>("adamw: dtype={} is not float32 or float64", name(args.dtype));
  }
  if (args.control == nullptr && args.step < 1)
    raise<ShapeError>("adamw: step={} is less than 1", args.step);
  run_entry(op_class(Op::kAdamW, args.dtype), adamw_entries(), args, context);
}

void sgd(const SgdArgs& args, const Context& context) {
  if (args.dtype != acc_dtype(args.dtype)) {
    raise<ShapeError>("sgd: dtype={} is not float32 or float64", name(args.dtype));
  }
  if (args.n > 0 && (args.momentum != 0) != (args.momentum_buffer != nullptr)) {
    raise<ShapeError>("sgd: momentum={} {} momentum_buffer", args.momentum,
                      args.momentum_buffer ? "takes no" : "needs a");
  }
  run_entry(op_class(Op::kSgd, args.dtype), sgd_entries(), args, context);
}

void lion(const LionArgs& args, const Context& context) {
  if (args.dtype != acc_dtype(args.dtype)) {
    raise<ShapeError>("lion: dtype={} is not float32 or float64", name(args.dtype));
  }
  run_entry(op_class(Op::kLion, args.dtype), lion_entries(), args, context);
}

} // namespace pentatron::kernels
