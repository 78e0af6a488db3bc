#include "pentatron/optim/remainder.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdint>
#include <limits>

#include "pentatron/kernels/common/scalar.h"

namespace pentatron::optim {

namespace {

constexpr int64_t kRemainderGrain = 1 << 14; // elements that a thread takes
/// Of a device, elements at once: what LibTorch's operators make meanwhile is four times as large.
constexpr int64_t kAtOnce = 1 << 20;

bool plain(const at::Tensor& a, const at::Tensor& b, const at::Tensor& c) {
  return a.is_cpu() && a.is_contiguous() && b.is_contiguous() && c.is_contiguous();
}

void for_parts(int64_t n, const auto& fn) {
  for (int64_t begin = 0; begin < n; begin += kAtOnce) fn(begin, std::min(kAtOnce, n - begin));
}

} // namespace

at::Tensor joined(const at::Tensor& values, const at::Tensor& remainder) {
  at::Tensor master = at::empty(values.sizes(), values.options().dtype(at::kFloat));
  // What was rounded up has the upper bit of the remainder.
  if (plain(values, remainder, master)) {
    const auto* const upper = static_cast<const uint16_t*>(values.const_data_ptr());
    const auto* const lower = static_cast<const uint16_t*>(remainder.const_data_ptr());
    auto* const to = static_cast<uint32_t*>(master.mutable_data_ptr());
    at::parallel_for(0, master.numel(), kRemainderGrain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const uint32_t low = lower[i], high = upper[i] - (low >> 15);
        to[i] = high << 16 | low;
      }
    });
    return master;
  }
  const at::Tensor flat = master.view({-1}), bits = flat.view(at::kInt),
                   of_values = values.reshape({-1}).view(at::kShort),
                   of_remainder = remainder.reshape({-1});
  for_parts(flat.numel(), [&](int64_t begin, int64_t size) {
    const at::Tensor lower = of_remainder.narrow(0, begin, size).to(at::kInt).bitwise_and_(0xFFFF);
    at::Tensor out = bits.narrow(0, begin, size);
    out.copy_(of_values.narrow(0, begin, size));
    out.sub_(lower.bitwise_right_shift(15)).bitwise_left_shift_(16).bitwise_or_(lower);
  });
  return master;
}

void round_master(const at::Tensor& values, const at::Tensor& master) {
  at::Tensor out = values;
  if (values.scalar_type() != at::kBFloat16 || master.scalar_type() != at::kFloat) {
    out.copy_(master);
  } else if (values.is_cpu() && values.is_contiguous() && master.is_contiguous()) {
    auto* const to = out.mutable_data_ptr<at::BFloat16>();
    const auto* const from = master.const_data_ptr<float>();
    at::parallel_for(0, out.numel(), kRemainderGrain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) to[i] = at::BFloat16(kernels::ties_away(from[i]));
    });
  } else {
    const at::Tensor bits = master.view(at::kInt);
    out.copy_(bits.bitwise_or(bits.bitwise_right_shift(15).bitwise_and_(1)).view(at::kFloat));
  }
}

void split_master(const at::Tensor& master, const at::Tensor& values, const at::Tensor& remainder) {
  // The lower half of a NaN may not carry into its sign.
  if (plain(master, values, remainder)) {
    const auto* const from = static_cast<const uint32_t*>(master.const_data_ptr());
    auto* const upper = static_cast<uint16_t*>(values.mutable_data_ptr());
    auto* const lower = static_cast<uint16_t*>(remainder.mutable_data_ptr());
    at::parallel_for(0, master.numel(), kRemainderGrain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const uint32_t bits = (from[i] & 0x7FFFFFFF) > 0x7F800000 ? 0x7FC00000 : from[i];
        lower[i] = static_cast<uint16_t>(bits);
        upper[i] = static_cast<uint16_t>((bits >> 16) + (bits >> 15 & 1));
      }
    });
    return;
  }
  const at::Tensor of_master = master.reshape({-1});
  for_parts(of_master.numel(), [&](int64_t begin, int64_t size) {
    const at::Tensor part = of_master.narrow(0, begin, size);
    const at::Tensor bits =
        at::where(part.isnan(), std::numeric_limits<float>::quiet_NaN(), part).view(at::kInt);
    const at::Tensor lower = bits.bitwise_and(0xFFFF);
    at::Tensor upper = bits.bitwise_right_shift(16);
    values.view({-1})
        .narrow(0, begin, size)
        .view(at::kShort)
        .copy_(upper.add_(lower.bitwise_right_shift(15)));
    remainder.view({-1}).narrow(0, begin, size).copy_(lower);
  });
}

} // namespace pentatron::optim
