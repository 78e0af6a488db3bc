#include "pentatron/optim/narrow_state.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "pentatron/base/error.h"
#include "pentatron/base/text.h"
#include "pentatron/comm/collectives.h"
#include "pentatron/comm/gather_text.h"

namespace pentatron::optim {

namespace {

/// Scales beyond would leave the range of fp32.
constexpr int kMostExponent = 120;

double largest_number(at::ScalarType dtype) {
  return dtype == at::kHalf ? 65504 : 448;
}

} // namespace

bool is_scaled(at::ScalarType dtype) {
  return dtype == at::kHalf || dtype == at::kFloat8_e4m3fn;
}

double state_scale(double bound, at::ScalarType dtype) {
  if (!is_scaled(dtype) || !(bound > 0)) return 1;
  int exponent = 0;
  std::frexp(largest_number(dtype) / bound, &exponent); // in [0.5, 1) 2^exponent
  return std::ldexp(1.0, std::clamp(exponent - 1, -kMostExponent, kMostExponent));
}

at::Tensor widened(const at::Tensor& stored, double scale, at::ScalarType acc) {
  const at::Tensor value = stored.to(acc);
  if (scale != 1) at::Tensor(value).mul_(1 / scale);
  return value;
}

void store_narrow(const at::Tensor& stored, const at::Tensor& value, double scale) {
  if (!is_scaled(stored.scalar_type())) {
    stored.copy_(value);
    return;
  }
  const double most = largest_number(stored.scalar_type());
  stored.copy_(value.mul(scale).clamp_(-most, most));
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
