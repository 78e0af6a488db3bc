#include "pentatron/kernels/optimizer/buffer.h"

#include "pentatron/kernels/common/dispatch.h"
#include "pentatron/kernels/common/refuse.h"
#include "pentatron/kernels/optimizer/optimizer_entries.h"

namespace pentatron::kernels {

namespace {

template <auto refuse> std::string refuse_output(const CastArgs& args, const Context& context) {
  return args.out_dtype == DType::kFloat64 ? "writes no float64" : refuse(args, context);
}

#ifdef PENTATRON_CUDA
std::string refuse_on_cuda(const SumOfSquaresArgs& args, const Context& context) {
  if (context.device == Device::kCuda && context.workspace.size() < workspace_bytes(args)) {
    return fmt::format("a workspace of {} bytes is less than the {} needed",
                       context.workspace.size(), workspace_bytes(args));
  }
  return refuse_unless_cuda(args, context);
}
#endif

} // namespace

std::span<const Entry<SumOfSquaresArgs>> sum_of_squares_entries() {
  static const Entry<SumOfSquaresArgs> entries[] = {
#if defined(__x86_64__)
    {"avx512", refuse_unless_avx512, optimizer_avx512::sum_of_squares},
    {"avx2", refuse_unless_avx2, optimizer_avx2::sum_of_squares},
#endif
    {"reference", refuse_unless_cpu, optimizer_reference::sum_of_squares},
#ifdef PENTATRON_CUDA
    {"cuda", refuse_on_cuda, optimizer_cuda::sum_of_squares},
#endif
  };
  return entries;
}

std::span<const Entry<NonfiniteArgs>> find_nonfinite_entries() {
  static const Entry<NonfiniteArgs> entries[] = {
#if defined(__x86_64__)
    {"avx512", refuse_unless_avx512, optimizer_avx512::find_nonfinite},
    {"avx2", refuse_unless_avx2, optimizer_avx2::find_nonfinite},
#endif
    {"reference", refuse_unless_cpu, optimizer_reference::find_nonfinite},
#ifdef PENTATRON_CUDA
    {"cuda", refuse_unless_cuda, optimizer_cuda::find_nonfinite},
#endif
  };
  return entries;
}

std::span<const Entry<ScaleArgs>> scale_entries() {
  static const Entry<ScaleArgs> entries[] = {
#if defined(__x86_64__)
    {"avx512", refuse_unless_avx512, optimizer_avx512::scale},
    {"avx2", refuse_unless_avx2, optimizer_avx2::scale},
#endif
    {"reference", refuse_unless_cpu, optimizer_reference::scale},
#ifdef PENTATRON_CUDA
    {"cuda", refuse_unless_cuda, optimizer_cuda::scale},
#endif
  };
  return entries;
}

std::span<const Entry<CastArgs>> cast_entries() {
  static const Entry<CastArgs> entries[] = {
#if defined(__x86_64__)
    {"avx512", refuse_output<refuse_float64_or_no_avx512<CastArgs>>, optimizer_avx512::cast},
    {"avx2", refuse_output<refuse_float64_or_no_avx2<CastArgs>>, optimizer_avx2::cast},
#endif
    {"reference", refuse_unless_cpu, optimizer_reference::cast},
#ifdef PENTATRON_CUDA
    {"cuda", refuse_unless_cuda, optimizer_cuda::cast},
#endif
  };
  return entries;
}

std::span<const Entry<ZeroArgs>> zero_entries() {
  static const Entry<ZeroArgs> entries[] = {
      {"reference", refuse_unless_cpu, optimizer_reference::zero},
#ifdef PENTATRON_CUDA
      {"cuda", refuse_unless_cuda, optimizer_cuda::zero},
#endif
  };
  return entries;
}

void sum_of_squares(const SumOfSquaresArgs& args, const Context& context) {
  run_entry(op_class(Op::kSumOfSquares, args.dtype), sum_of_squares_entries(), args, context);
}

size_t workspace_bytes(const SumOfSquaresArgs& args) {
  return static_cast<size_t>((args.n + kSumBlock - 1) / kSumBlock) * sizeof(double);
}

void find_nonfinite(const NonfiniteArgs& args, const Context& context) {
  run_entry(op_class(Op::kFindNonfinite, args.dtype), find_nonfinite_entries(), args, context);
}

void scale(const ScaleArgs& args, const Context& context) {
  run_entry(op_class(Op::kScale, args.dtype), scale_entries(), args, context);
}

void cast(const CastArgs& args, const Context& context) {
  run_entry(op_class(Op::kCast, args.dtype), cast_entries(), args, context);
}

void zero(const ZeroArgs& args, const Context& context) {
  run_first("zero", zero_entries(), args, context);
}

} // namespace pentatron::kernels
