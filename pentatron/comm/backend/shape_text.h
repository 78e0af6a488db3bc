/// Type and shape of a tensor, in the errors of every backend.
#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace pentatron::comm {

std::string shape_text(const at::Tensor& x); ///< "Float [3, 4]"
/// The same of a part of several, or "Float [3 | 0 | 4]" of vectors with different lengths.
std::string part_text(const std::vector<at::Tensor>& parts);
bool have_equal_sizes(const std::vector<at::Tensor>& parts);

} // namespace pentatron::comm
