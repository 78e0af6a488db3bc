#include "pentatron/kernels/optimizer/buffer.h"

#include "pentatron/kernels/common/dispatch.h"
#include "pentatron/kernels/optimizer/optimizer_entries.h"
#include "pentatron/kernels/simd/refuse.h"

namespace pentatron::kernels {

using simd::refuse_unless_cpu;

std::span<const Entry<SumOfSquaresArgs>> sum_of_squares_entries() {
  static const Entry<SumOfSquaresArgs> entries[] = {
      {"reference", refuse_unless_cpu, optimizer_reference::sum_of_squares},
  };
  return entries;
}

std::span<const Entry<NonfiniteArgs>> find_nonfinite_entries() {
  static const Entry<NonfiniteArgs> entries[] = {
      {"reference", refuse_unless_cpu, optimizer_reference::find_nonfinite},
  };
  return entries;
}

std::span<const Entry<ScaleArgs>> scale_entries() {
  static const Entry<ScaleArgs> entries[] = {
      {"reference", refuse_unless_cpu, optimizer_reference::scale},
  };
  return entries;
}

std::span<const Entry<CastArgs>> cast_entries() {
  static const Entry<CastArgs> entries[] = {
      {"reference", refuse_unless_cpu, optimizer_reference::cast},
  };
  return entries;
}

std::span<const Entry<ZeroArgs>> zero_entries() {
  static const Entry<ZeroArgs> entries[] = {
      {"reference", refuse_unless_cpu, optimizer_reference::zero},
  };
  return entries;
}

void sum_of_squares(const SumOfSquaresArgs& args, const Context& context) {
  run_first("sum_of_squares", sum_of_squares_entries(), args, context);
}

size_t workspace_bytes(const SumOfSquaresArgs& args) {
  return static_cast<size_t>((args.n + kSumBlock - 1) / kSumBlock) * sizeof(double);
}

void find_nonfinite(const NonfiniteArgs& args, const Context& context) {
  run_first("find_nonfinite", find_nonfinite_entries(), args, context);
}

void scale(const ScaleArgs& args, const Context& context) {
  run_first("scale", scale_entries(), args, context);
}

void cast(const CastArgs& args, const Context& context) {
  run_first("cast", cast_entries(), args, context);
}

void zero(const ZeroArgs& args, const Context& context) {
  run_first("zero", zero_entries(), args, context);
}

} // namespace pentatron::kernels
