#include "pentatron/optim/remainder.h"

#include <ATen/ATen.h>

namespace pentatron::optim {

at::Tensor joined(const at::Tensor& values, const at::Tensor& remainder) {
  const at::Tensor lower = remainder.to(at::kInt).bitwise_and(0xFFFF);
  // What was rounded up has the upper bit of the remainder.
  at::Tensor upper = values.view(at::kShort).to(at::kInt).sub_(lower.bitwise_right_shift(15));
  return upper.bitwise_left_shift_(16).bitwise_or_(lower).view(at::kFloat);
}

void split_master(const at::Tensor& master, const at::Tensor& values, const at::Tensor& remainder) {
  const at::Tensor bits = master.view(at::kInt), lower = bits.bitwise_and(0xFFFF);
  at::Tensor upper = bits.bitwise_right_shift(16);
  values.view(at::kShort).copy_(upper.add_(lower.bitwise_right_shift(15)));
  remainder.copy_(lower);
}

} // namespace pentatron::optim
