#include "pentatron/optim/narrow_state.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <array>
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
#include "pentatron/kernels/quantize/formats.h"
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

/// widened() of FP8 by a table, which takes a fraction of the time of LibTorch's conversion.
static at::Tensor looked_up(const at::Tensor& stored, double scale, bool root) {
  std::array<float, 256> table;
  for (size_t code = 0; code < table.size(); ++code) {
    const float value = kernels::value_of(kernels::kE4M3, static_cast<uint8_t>(code)) *
                        static_cast<float>(1 / scale);
    table[code] = root ? value * value : value;
  }
  at::Tensor wide = at::empty(stored.sizes(), stored.options().dtype(at::kFloat));
  const auto* const from = static_cast<const uint8_t*>(stored.const_data_ptr());
  float* const to = wide.data_ptr<float>();
  at::parallel_for(0, stored.numel(), 1 << 14, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) to[i] = table[from[i]];
  });
  return wide;
}

at::Tensor widened(const at::Tensor& stored, double scale, at::ScalarType acc, bool root) {
  if (stored.scalar_type() == at::kFloat8_e4m3fn && acc == at::kFloat && stored.is_cpu() &&
      stored.is_contiguous())
    return looked_up(stored, scale, root);
  const at::Tensor value = stored.to(acc);
  if (scale != 1) at::Tensor(value).mul_(1 / scale);
  if (root) at::Tensor(value).square_();
  return value;
}

void store_narrow(const at::Tensor& stored, const at::Tensor& value, double scale, bool squared) {
  const at::ScalarType type = stored.scalar_type();
  if (!is_scaled(type)) {
    stored.copy_(value);
    return;
  }
  const double most = largest_number(type);
  at::Tensor scaled = stores_root(type, squared) ? value.sqrt().mul_(scale) : value.mul(scale);
  scaled.clamp_(-most, most);
  if (squared) scaled = at::where(value.gt(0), scaled.clamp_min(smallest_number(type)), scaled);
  stored.copy_(scaled);
}

void store_by_chance(const at::Tensor& stored, const at::Tensor& value, double scale, bool squared,
                     const Chance& chance) {
  const at::ScalarType type = stored.scalar_type();
  auto* const to = static_cast<std::byte*>(stored.mutable_data_ptr());
  const auto* const from = static_cast<const std::byte*>(value.const_data_ptr());
  const Stream stream(0, "rounding of " + chance.name);
  const nn::KernelContext context(stored);
  for (const nn::GlobalRuns& runs : chance.runs)
    kernels::round_by_chance(
        {.dtype = nn::kernel_dtype(value.scalar_type()),
         .type = narrow_type(type),
         .rows = runs.count,
         .cols = runs.size,
         .stride = runs.local_step,
         .value = from + runs.local * value.element_size(),
         .stored = to + runs.local * stored.element_size(),
         .scale = scale,
         .root = stores_root(type, squared),
         .positive = squared && is_scaled(type),
         .key = stream.key(),
         .step = static_cast<uint64_t>(chance.step),
         .first = planted("chance_of_the_ranks_own_element") ? runs.local : runs.global,
         .first_step = runs.global_step},
        context);
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
