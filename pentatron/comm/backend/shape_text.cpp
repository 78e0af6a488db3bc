#include "pentatron/comm/backend/shape_text.h"

#include <fmt/ranges.h>

#include <algorithm>

namespace pentatron::comm {

std::string shape_text(const at::Tensor& x) {
  return fmt::format("{} [{}]", c10::toString(x.scalar_type()), fmt::join(x.sizes(), ", "));
}

bool have_equal_sizes(const std::vector<at::Tensor>& parts) {
  return std::ranges::all_of(
      parts, [&](const at::Tensor& part) { return part.sizes() == parts.front().sizes(); });
}

std::string part_text(const std::vector<at::Tensor>& parts) {
  if (have_equal_sizes(parts)) return shape_text(parts.front());
  std::vector<int64_t> lengths;
  for (const at::Tensor& part : parts) lengths.push_back(part.numel());
  return fmt::format("{} [{}]", c10::toString(parts.front().scalar_type()),
                     fmt::join(lengths, " | "));
}

} // namespace pentatron::comm
