/// Converts between tensors and Safetensors entries.
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include <ATen/core/Tensor.h>

#include "pentatron/base/safetensors.h"

namespace pentatron::checkpoint {

/// A copy on the CPU, or a view of the mapped file where that is aligned (`borrow`: the file must
/// outlive the tensor).
at::Tensor to_tensor(const SafeTensor& entry, bool borrow = false);

SafeDtype safe_dtype(at::ScalarType type);
at::ScalarType scalar_type(SafeDtype dtype);

/// Writes all tensors (any device, any strides) as one file, whole or not at all.
void write_tensors(const std::filesystem::path& file,
                   const std::map<std::string, at::Tensor>& tensors,
                   const SafeMetadata& metadata = {});

} // namespace pentatron::checkpoint
