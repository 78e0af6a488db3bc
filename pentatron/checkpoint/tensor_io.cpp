#include "pentatron/checkpoint/tensor_io.h"

#include <ATen/ATen.h>

#include <cstring>
#include <utility>

#include "pentatron/base/error.h"

namespace pentatron::checkpoint {

namespace {

constexpr std::pair<SafeDtype, at::ScalarType> kTypes[] = {
    {SafeDtype::kF64, at::kDouble},        {SafeDtype::kF32, at::kFloat},
    {SafeDtype::kF16, at::kHalf},          {SafeDtype::kBF16, at::kBFloat16},
    {SafeDtype::kI64, at::kLong},          {SafeDtype::kI32, at::kInt},
    {SafeDtype::kI16, at::kShort},         {SafeDtype::kI8, at::kChar},
    {SafeDtype::kU8, at::kByte},           {SafeDtype::kU16, at::kUInt16},
    {SafeDtype::kU32, at::kUInt32},        {SafeDtype::kU64, at::kUInt64},
    {SafeDtype::kBool, at::kBool},         {SafeDtype::kF8E4M3, at::kFloat8_e4m3fn},
    {SafeDtype::kF8E5M2, at::kFloat8_e5m2}};

} // namespace

SafeDtype safe_dtype(at::ScalarType type) {
  for (const auto& [safe, torch] : kTypes) {
    if (torch == type) return safe;
  }
  raise<CheckpointError>("tensors of type {} cannot be stored in Safetensors files",
                         c10::toString(type));
}

at::ScalarType scalar_type(SafeDtype dtype) {
  for (const auto& [safe, torch] : kTypes) {
    if (safe == dtype) return torch;
  }
  raise<CheckpointError>("tensors of type {} cannot be loaded", name_of(dtype));
}

at::Tensor to_tensor(const SafeTensor& entry, bool borrow) {
  const auto options = at::TensorOptions(scalar_type(entry.dtype));
  const bool aligned = reinterpret_cast<uintptr_t>(entry.data.data()) % size_of(entry.dtype) == 0;
  if (borrow && aligned && !entry.data.empty()) {
    return at::from_blob(const_cast<std::byte*>(entry.data.data()), entry.shape, options);
  }
  at::Tensor tensor = at::empty(entry.shape, options);
  if (!entry.data.empty()) std::memcpy(tensor.data_ptr(), entry.data.data(), entry.data.size());
  return tensor;
}

void write_tensors(const std::filesystem::path& file,
                   const std::map<std::string, at::Tensor>& tensors, const SafeMetadata& metadata) {
  std::vector<SafeTensorSpec> specs;
  for (const auto& [name, tensor] : tensors)
    specs.push_back({name, safe_dtype(tensor.scalar_type()), tensor.sizes().vec()});
  SafetensorsWriter writer(file, specs, metadata);
  for (const auto& [name, tensor] : tensors) {
    const at::Tensor host = tensor.detach().cpu().contiguous();
    writer.write(name, {static_cast<const std::byte*>(host.data_ptr()), host.nbytes()});
  }
  writer.finish();
}

} // namespace pentatron::checkpoint
