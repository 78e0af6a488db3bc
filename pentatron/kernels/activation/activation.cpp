#include "pentatron/kernels/activation/activation.h"

#include "pentatron/base/error.h"
#include "pentatron/kernels/activation/activation_entries.h"
#include "pentatron/kernels/common/column_sums.h"
#include "pentatron/kernels/common/dispatch.h"
#include "pentatron/kernels/common/refuse.h"

namespace pentatron::kernels {

namespace {

constexpr Entry<ActivationForward> kForward[] = {
#ifdef PENTATRON_CUDA
    {"cuda", refuse_unless_cuda, ActivationCuda::run},
#endif
#if defined(__x86_64__)
    {"avx512", refuse_float64_or_no_avx512, ActivationAvx512::run},
    {"avx2", refuse_float64_or_no_avx2, ActivationAvx2::run},
#endif
    {"reference", refuse_unless_cpu, ActivationReference::run},
};
constexpr Entry<ActivationBackward> kBackward[] = {
#ifdef PENTATRON_CUDA
    {"cuda", refuse_unless_cuda, ActivationCuda::run},
#endif
#if defined(__x86_64__)
    {"avx512", refuse_float64_or_no_avx512, ActivationAvx512::run},
    {"avx2", refuse_float64_or_no_avx2, ActivationAvx2::run},
#endif
    {"reference", refuse_unless_cpu, ActivationReference::run},
};

void check_gate(const GateOptions& gate) {
  if (!(gate.limit > 0))
    raise<ShapeError>("activation with limit={}: it is not positive", gate.limit);
}

void check_sizes(int64_t rows, int64_t cols) {
  if (rows < 0 || cols < 0)
    raise<ShapeError>("activation over rows={}, cols={}: a size is negative", rows, cols);
}

void pack(int64_t& stride, int64_t cols) {
  if (stride == 0) stride = cols;
}

} // namespace

std::string_view name(Activation a) {
  switch (a) {
  case Activation::kGelu:
    return "gelu";
  case Activation::kGeluTanh:
    return "gelu_tanh";
  case Activation::kQuickGelu:
    return "quick_gelu";
  case Activation::kRelu:
    return "relu";
  case Activation::kSquaredRelu:
    return "squared_relu";
  case Activation::kSilu:
    return "silu";
  }
  return "unknown";
}

std::span<const Entry<ActivationForward>> activation_forward_entries() {
  return kForward;
}
std::span<const Entry<ActivationBackward>> activation_backward_entries() {
  return kBackward;
}

void activation_forward(const ActivationForward& args, const Context& context) {
  check_sizes(args.rows, args.cols);
  check_gate(args.gate);
  if (args.rows == 0 || args.cols == 0) return;
  if (args.x == nullptr || args.y == nullptr) raise<ShapeError>("activation_forward needs x and y");
  ActivationForward full = args;
  pack(full.x_stride, args.gated ? 2 * args.cols : args.cols);
  pack(full.y_stride, args.cols);
  run_entry(op_class(Op::kActivationForward, full.dtype), activation_forward_entries(), full,
            context);
}

void activation_backward(const ActivationBackward& args, const Context& context) {
  check_sizes(args.rows, args.cols);
  check_gate(args.gate);
  if (args.rows == 0 || args.cols == 0) return;
  if (args.dy == nullptr || args.x == nullptr || args.dx == nullptr)
    raise<ShapeError>("activation_backward needs dy, x and dx");
  ActivationBackward full = args;
  pack(full.dy_stride, args.cols);
  pack(full.x_stride, args.gated ? 2 * args.cols : args.cols);
  pack(full.dx_stride, args.gated ? 2 * args.cols : args.cols);
  run_entry(op_class(Op::kActivationBackward, full.dtype), activation_backward_entries(), full,
            context);
}

size_t workspace_bytes(const ActivationBackward& args) {
  if (args.dbias == nullptr) return 0;
  return ColumnSums::bytes(args.rows, args.gated ? 2 * args.cols : args.cols);
}

} // namespace pentatron::kernels
