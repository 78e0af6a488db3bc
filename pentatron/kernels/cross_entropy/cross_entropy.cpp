#include "pentatron/kernels/cross_entropy/cross_entropy.h"

#include "pentatron/kernels/common/dispatch.h"
#include "pentatron/kernels/common/refuse.h"
#include "pentatron/kernels/cross_entropy/cross_entropy_entries.h"

namespace pentatron::kernels {

namespace {

void require(bool ok, const char* op, const char* what) {
  if (!ok) raise<ShapeError>("{}: {}", op, what);
}

/// Whether a kernel may write the gradient over the logits: on a CPU, which goes through a row from
/// left to right, a narrower one never reaches what is still to be read.
template <class Args> bool fits_in_place(const Args& a, const Context& context) {
  if (a.dtype == a.out_dtype) return a.row_stride == a.out_row_stride;
  const size_t in = element_size(a.dtype), out = element_size(a.out_dtype);
  return context.device == Device::kCpu && out < in &&
         a.row_stride * static_cast<int64_t>(in) == a.out_row_stride * static_cast<int64_t>(out);
}

template <class Args> void check_gradient(const Args& a, const Context& context, const char* op) {
  require(a.padded_columns >= a.columns, op, "padded_columns is less than columns");
  require(a.out_row_stride >= a.padded_columns || a.rows <= 1, op,
          "out_row_stride is less than padded_columns");
  require((a.dtype == DType::kFloat64) == (a.out_dtype == DType::kFloat64), op,
          "float64 logits have float64 gradients and only they");
  require(
      a.gradient != a.logits || fits_in_place(a, context), op,
      "an in-place gradient needs equal dtypes and strides, or on a CPU a narrower dtype and rows "
      "that begin in equal places");
}

} // namespace

std::span<const Entry<CrossEntropyStatsArgs>> cross_entropy_stats_entries() {
  static const Entry<CrossEntropyStatsArgs> entries[] = {
#if defined(__x86_64__)
    {"avx512", refuse_float64_or_no_avx512, cross_entropy_avx512::stats},
    {"avx2", refuse_float64_or_no_avx2, cross_entropy_avx2::stats},
#endif
    {"reference", refuse_unless_cpu, cross_entropy_reference::stats},
#ifdef PENTATRON_CUDA
    {"cuda", refuse_unless_cuda, cross_entropy_cuda::stats},
#endif
  };
  return entries;
}

std::span<const Entry<CrossEntropyRescaleArgs>> cross_entropy_rescale_entries() {
  static const Entry<CrossEntropyRescaleArgs> entries[] = {
      {"reference", refuse_unless_cpu, cross_entropy_reference::rescale},
#ifdef PENTATRON_CUDA
      {"cuda", refuse_unless_cuda, cross_entropy_cuda::rescale},
#endif
  };
  return entries;
}

std::span<const Entry<CrossEntropyLossArgs>> cross_entropy_loss_entries() {
  static const Entry<CrossEntropyLossArgs> entries[] = {
      {"reference", refuse_unless_cpu, cross_entropy_reference::loss},
#ifdef PENTATRON_CUDA
      {"cuda", refuse_unless_cuda, cross_entropy_cuda::loss},
#endif
  };
  return entries;
}

std::span<const Entry<CrossEntropyGradientArgs>> cross_entropy_gradient_entries() {
  static const Entry<CrossEntropyGradientArgs> entries[] = {
#if defined(__x86_64__)
    {"avx512", refuse_float64_or_no_avx512, cross_entropy_avx512::gradient},
    {"avx2", refuse_float64_or_no_avx2, cross_entropy_avx2::gradient},
#endif
    {"reference", refuse_unless_cpu, cross_entropy_reference::gradient},
#ifdef PENTATRON_CUDA
    {"cuda", refuse_unless_cuda, cross_entropy_cuda::gradient},
#endif
  };
  return entries;
}

std::span<const Entry<CrossEntropyArgs>> cross_entropy_entries() {
  static const Entry<CrossEntropyArgs> entries[] = {
#if defined(__x86_64__)
    {"avx512", refuse_float64_or_no_avx512, cross_entropy_avx512::fused},
    {"avx2", refuse_float64_or_no_avx2, cross_entropy_avx2::fused},
#endif
    {"reference", refuse_unless_cpu, cross_entropy_reference::fused},
#ifdef PENTATRON_CUDA
    {"cuda", refuse_unless_cuda, cross_entropy_cuda::fused},
#endif
  };
  return entries;
}

void cross_entropy_stats(const CrossEntropyStatsArgs& args, const Context& context) {
  run_entry(op_class(Op::kCrossEntropyStats, args.dtype), cross_entropy_stats_entries(), args,
            context);
}

void cross_entropy_rescale(const CrossEntropyRescaleArgs& args, const Context& context) {
  run_first("cross_entropy_rescale", cross_entropy_rescale_entries(), args, context);
}

void cross_entropy_loss(const CrossEntropyLossArgs& args, const Context& context) {
  require(args.label_smoothing == 0 || (args.logit_sum && args.global_vocab > 0),
          "cross_entropy_loss", "label smoothing needs logit_sum and global_vocab");
  run_first("cross_entropy_loss", cross_entropy_loss_entries(), args, context);
}

void cross_entropy_gradient(const CrossEntropyGradientArgs& args, const Context& context) {
  check_gradient(args, context, "cross_entropy_gradient");
  require(args.label_smoothing == 0 || args.global_vocab > 0, "cross_entropy_gradient",
          "label smoothing needs global_vocab");
  run_entry(op_class(Op::kCrossEntropyGradient, args.dtype), cross_entropy_gradient_entries(), args,
            context);
}

void cross_entropy(const CrossEntropyArgs& args, const Context& context) {
  if (args.gradient) {
    check_gradient(args, context, "cross_entropy");
    require(args.row_scale != nullptr, "cross_entropy", "a gradient needs row_scale");
  }
  run_entry(op_class(Op::kCrossEntropy, args.dtype), cross_entropy_entries(), args, context);
}

} // namespace pentatron::kernels
