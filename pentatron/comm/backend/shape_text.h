/// Type and shape of a tensor, in the errors of every backend.
#pragma once

#include <string>

#include <ATen/core/Tensor.h>

namespace pentatron::comm {

std::string shape_text(const at::Tensor& x); ///< "Float [3, 4]"

} // namespace pentatron::comm
