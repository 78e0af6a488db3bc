#include "pentatron/optim/narrow_state.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <cstddef>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "pentatron/base/error.h"
#include "pentatron/base/philox.h"
#include "pentatron/base/planted_bug.h"
#include "pentatron/base/text.h"
#include "pentatron/comm/collectives.h"
#include "pentatron/comm/gather_text.h"
#include "pentatron/kernels/optimizer/narrow.h"
#include "pentatron/nn/ops/kernel_args.h"

namespace pentatron::optim {

namespace {

/// Scales beyond would leave the range of fp32.
constexpr int kMostExponent = 120;

double largest_number(at::ScalarType dtype) {
  return dtype == at::kHalf ? 65504 : 448;
}
double smallest_number(at::ScalarType dtype) {
  return dtype == at::kHalf ? 0x1p-24 : 0x1p-9;
}

/// Significant bits of a narrow type; 0 for a wide one.
int significant_bits(at::ScalarType dtype) {
  switch (dtype) {
  case at::kBFloat16:
    return 8;
  case at::kHalf:
    return 11;
  case at::kFloat8_e4m3fn:
    return 4;
  default:
    return 0;
  }
}

kernels::NarrowType narrow_type(at::ScalarType dtype) {
  return dtype == at::kBFloat16 ? kernels::NarrowType::kBFloat16
         : dtype == at::kHalf   ? kernels::NarrowType::kFloat16
                                : kernels::NarrowType::kE4M3;
}

} // namespace

bool is_scaled(at::ScalarType dtype) {
  return dtype == at::kHalf || dtype == at::kFloat8_e4m3fn;
}

bool stores_root(at::ScalarType dtype, bool squared) {
  return squared && dtype == at::kFloat8_e4m3fn;
}

bool rounds_by_chance(double decay, at::ScalarType dtype, bool squared) {
  const int bits = significant_bits(dtype);
  const double own = stores_root(dtype, squared) ? std::sqrt(decay) : decay;
  return bits > 0 && own > 1 - std::ldexp(squared ? 4.0 : 1.0, -bits);
}

double state_scale(double bound, at::ScalarType dtype, bool root) {
  if (!is_scaled(dtype) || !(bound > 0)) return 1;
  if (root) bound = std::sqrt(bound);
  int exponent = 0;
  std::frexp(largest_number(dtype) / bound, &exponent); // in [0.5, 1) 2^exponent
  return std::ldexp(1.0, std::clamp(exponent - 1, -kMostExponent, kMostExponent));
}

double smallest_state(double bound, at::ScalarType dtype) {
  return smallest_number(dtype) / state_scale(bound, dtype);
}

void widen_into(const at::Tensor& wide, const at::Tensor& stored, double scale, bool root) {
  if (!is_scaled(stored.scalar_type())) { // numbers that a checkpoint has already widened, too
    wide.copy_(stored);
    if (scale != 1) at::Tensor(wide).mul_(1 / scale);
    if (root) at::Tensor(wide).square_();
    return;
  }
  PT_DCHECK(wide.is_contiguous());
  const at::Tensor from = stored.contiguous();
  kernels::load_narrow({.dtype = nn::kernel_dtype(wide.scalar_type()),
                        .type = narrow_type(stored.scalar_type()),
                        .n = wide.numel(),
                        .stored = from.const_data_ptr(),
                        .value = wide.mutable_data_ptr(),
                        .scale = scale,
                        .root = root},
                       nn::KernelContext(wide));
}

at::Tensor widened(const at::Tensor& stored, double scale, at::ScalarType acc, bool root) {
  at::Tensor wide = at::empty(stored.sizes(), stored.options().dtype(acc));
  widen_into(wide, stored, scale, root);
  return wide;
}

/// To the nearest, without an order of the elements.
static kernels::StoreNarrowArgs storing(const at::Tensor& stored, const at::Tensor& value,
                                        double scale, bool squared) {
  const at::ScalarType type = stored.scalar_type();
  return {.dtype = nn::kernel_dtype(value.scalar_type()),
          .type = narrow_type(type),
          .cols = stored.numel(),
          .value = value.const_data_ptr(),
          .stored = stored.mutable_data_ptr(),
          .scale = scale,
          .root = stores_root(type, squared),
          .positive = squared && is_scaled(type)};
}

void store_narrow(const at::Tensor& stored, const at::Tensor& value, double scale, bool squared) {
  if (!is_scaled(stored.scalar_type())) {
    stored.copy_(value);
    return;
  }
  const at::Tensor from = value.contiguous(), to = stored.contiguous();
  kernels::store_narrow(storing(to, from, scale, squared), nn::KernelContext(stored));
  if (!to.is_same(stored)) stored.copy_(to);
}

void store_by_chance(const at::Tensor& stored, const at::Tensor& value, double scale, bool squared,
                     const Chance& chance) {
  kernels::StoreNarrowArgs args = storing(stored, value, scale, squared);
  const auto* const from = static_cast<const std::byte*>(args.value);
  auto* const to = static_cast<std::byte*>(args.stored);
  args.by_chance = true;
  args.key = Stream(0, "rounding of " + chance.name).key();
  args.step = static_cast<uint64_t>(chance.step);
  const nn::KernelContext context(stored);
  for (const nn::GlobalRuns& runs : chance.runs) {
    args.rows = runs.count;
    args.cols = runs.size;
    args.stride = runs.local_step;
    args.value = from + runs.local * value.element_size();
    args.stored = to + runs.local * stored.element_size();
    args.first = planted("chance_of_the_ranks_own_element") ? runs.local : runs.global;
    args.first_step = runs.global_step;
    kernels::store_narrow(args, context);
  }
}

StateBounds::StateBounds(const std::vector<std::string>& own, comm::Group world)
    : world_(std::move(world)) {
  for (const std::string& text : comm::gather_text(fmt::format("{}", fmt::join(own, "\n")), world_))
    for (const std::string_view name : split(text, '\n'))
      if (!name.empty()) bounds_.emplace(name, 0.0);
}

double StateBounds::of(const std::string& name) const {
  const auto found = bounds_.find(name);
  PT_DCHECK(found != bounds_.end());
  return found->second;
}

void StateBounds::set(const std::string& name, double bound) {
  if (const auto found = bounds_.find(name); found != bounds_.end()) found->second = bound;
}

StateBounds::Bounds StateBounds::largest(const Bounds& own) const {
  const at::Tensor values = at::zeros({std::ssize(bounds_)}, at::kDouble);
  double* value = values.data_ptr<double>();
  for (const auto& [name, bound] : bounds_) {
    const auto found = own.find(name);
    *value++ = found == own.end() ? 0 : found->second;
  }
  comm::all_reduce_(values, comm::ReduceOp::kMax, world_);
  std::map<std::string, double> all;
  value = values.data_ptr<double>();
  for (const auto& [name, bound] : bounds_) all[name] = *value++;
  return all;
}

} // namespace pentatron::optim
