#include "pentatron/optim/remainder.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <limits>

#include "pentatron/kernels/common/scalar.h"

namespace pentatron::optim {

at::Tensor joined(const at::Tensor& values, const at::Tensor& remainder) {
  const at::Tensor lower = remainder.to(at::kInt).bitwise_and(0xFFFF);
  // What was rounded up has the upper bit of the remainder.
  at::Tensor upper = values.view(at::kShort).to(at::kInt).sub_(lower.bitwise_right_shift(15));
  return upper.bitwise_left_shift_(16).bitwise_or_(lower).view(at::kFloat);
}

void round_master(const at::Tensor& values, const at::Tensor& master) {
  at::Tensor out = values;
  if (values.scalar_type() != at::kBFloat16 || master.scalar_type() != at::kFloat) {
    out.copy_(master);
  } else if (values.is_cpu() && values.is_contiguous() && master.is_contiguous()) {
    auto* const to = out.mutable_data_ptr<at::BFloat16>();
    const auto* const from = master.const_data_ptr<float>();
    at::parallel_for(0, out.numel(), 1 << 14, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) to[i] = at::BFloat16(kernels::ties_away(from[i]));
    });
  } else {
    const at::Tensor bits = master.view(at::kInt);
    out.copy_(bits.bitwise_or(bits.bitwise_right_shift(15).bitwise_and_(1)).view(at::kFloat));
  }
}

void split_master(const at::Tensor& master, const at::Tensor& values, const at::Tensor& remainder) {
  // The lower half of a NaN may not carry into its sign.
  const at::Tensor whole =
      at::where(master.isnan(), std::numeric_limits<float>::quiet_NaN(), master);
  const at::Tensor bits = whole.view(at::kInt), lower = bits.bitwise_and(0xFFFF);
  at::Tensor upper = bits.bitwise_right_shift(16);
  values.view(at::kShort).copy_(upper.add_(lower.bitwise_right_shift(15)));
  remainder.copy_(lower);
}

} // namespace pentatron::optim
