#include "pentatron/kernels/norm/norm.h"

#include "pentatron/base/error.h"
#include "pentatron/kernels/common/column_sums.h"
#include "pentatron/kernels/common/dispatch.h"
#include "pentatron/kernels/common/refuse.h"
#include "pentatron/kernels/norm/norm_entries.h"

namespace pentatron::kernels {

namespace {

constexpr Entry<NormForward> kForward[] = {
#ifdef PENTATRON_CUDA
    {"cuda", refuse_unless_cuda, NormCuda::run},
#endif
#if defined(__x86_64__)
    {"avx512", refuse_float64_or_no_avx512, NormAvx512::run},
    {"avx2", refuse_float64_or_no_avx2, NormAvx2::run},
#endif
    {"reference", refuse_unless_cpu, NormReference::run},
};
constexpr Entry<NormBackward> kBackward[] = {
#ifdef PENTATRON_CUDA
    {"cuda", refuse_unless_cuda, NormCuda::run},
#endif
#if defined(__x86_64__)
    {"avx512", refuse_float64_or_no_avx512, NormAvx512::run},
    {"avx2", refuse_float64_or_no_avx2, NormAvx2::run},
#endif
    {"reference", refuse_unless_cpu, NormReference::run},
};

void check_sizes(int64_t rows, int64_t cols) {
  if (rows < 0 || cols < 1)
    raise<ShapeError>("norm over rows={}, cols={} needs rows >= 0 and cols >= 1", rows, cols);
}

} // namespace

std::span<const Entry<NormForward>> norm_forward_entries() {
  return kForward;
}
std::span<const Entry<NormBackward>> norm_backward_entries() {
  return kBackward;
}

void norm_forward(const NormForward& args, const Context& context) {
  check_sizes(args.rows, args.cols);
  if (args.rows == 0) return;
  if (args.x == nullptr || args.y == nullptr || (args.residual != nullptr && args.sum == nullptr))
    raise<ShapeError>("norm_forward needs x and y, and sum with a residual");
  if (args.kind == NormKind::kRmsNorm && args.bias != nullptr)
    raise<ShapeError>("norm_forward: RMSNorm has no bias");
  run_entry(op_class(Op::kNormForward, args.dtype), norm_forward_entries(), args, context);
}

void norm_backward(const NormBackward& args, const Context& context) {
  check_sizes(args.rows, args.cols);
  if (args.rows == 0) return;
  if (args.dy == nullptr || args.x == nullptr || args.rstd == nullptr ||
      (args.kind == NormKind::kLayerNorm && args.mean == nullptr))
    raise<ShapeError>("norm_backward needs dy, x and rstd, and mean for LayerNorm");
  if (context.device == Device::kCuda &&
      context.workspace.size() < workspace_bytes(args, Device::kCuda))
    raise<ShapeError>("norm_backward on CUDA needs a workspace of {} bytes, not {}",
                      workspace_bytes(args, Device::kCuda), context.workspace.size());
  run_entry(op_class(Op::kNormBackward, args.dtype), norm_backward_entries(), args, context);
}

size_t workspace_bytes(const NormBackward& args, Device device) {
  const int vectors = (args.dweight != nullptr) + (args.dbias != nullptr);
  if (vectors == 0) return 0;
  if (device == Device::kCpu) return vectors * ColumnSums::bytes(args.rows, args.cols);
  const int64_t rows = norm_cuda_chunk_rows(args.rows), chunks = (args.rows + rows - 1) / rows;
  return 2 * chunks * args.cols * element_size(acc_dtype(args.dtype));
}

} // namespace pentatron::kernels
