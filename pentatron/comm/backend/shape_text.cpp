#include "pentatron/comm/backend/shape_text.h"

#include <fmt/ranges.h>

namespace pentatron::comm {

std::string shape_text(const at::Tensor& x) {
  return fmt::format("{} [{}]", c10::toString(x.scalar_type()), fmt::join(x.sizes(), ", "));
}

} // namespace pentatron::comm
