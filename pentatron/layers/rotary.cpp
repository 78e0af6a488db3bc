#include "pentatron/layers/rotary.h"

#include <ATen/ATen.h>

#include "pentatron/base/error.h"
#include "pentatron/kernels/rope/rope.h"
#include "pentatron/nn/ops/kernel_args.h"

namespace pentatron::layers {

RotaryTable RotaryTable::make(const kernels::RopeOptions& options, bool interleaved,
                              int64_t max_position, at::ScalarType acc_dtype, at::Device device) {
  const kernels::RopeTables tables = kernels::rope_tables(options, max_position);
  const auto tensor = [&](const std::vector<double>& values) {
    at::Tensor t = at::empty({max_position, kernels::turned_dims(options) / 2}, at::kDouble);
    std::copy(values.begin(), values.end(), t.data_ptr<double>());
    return t.to(at::TensorOptions(acc_dtype).device(device));
  };
  return {tensor(tables.cos), tensor(tables.sin), kernels::turned_dims(options), interleaved};
}

void rotate(const at::Tensor& out, const at::Tensor& x, const RotaryTable& table,
            const at::Tensor& positions, bool transpose) {
  PT_DCHECK(x.stride(2) == 1 && out.stride(2) == 1);
  kernels::rope({.dtype = nn::kernel_dtype(x.scalar_type()),
                 .tokens = x.size(0),
                 .heads = x.size(1),
                 .head_size = x.size(2),
                 .rotary_dim = table.rotary_dim,
                 .x = x.data_ptr(),
                 .y = out.data_ptr(),
                 .x_token_stride = x.stride(0),
                 .x_head_stride = x.stride(1),
                 .y_token_stride = out.stride(0),
                 .y_head_stride = out.stride(1),
                 .cos = table.cos.data_ptr(),
                 .sin = table.sin.data_ptr(),
                 .max_position = table.cos.size(0),
                 .positions = positions.data_ptr<int32_t>(),
                 .interleaved = table.interleaved,
                 .transpose = transpose},
                nn::KernelContext(x));
}

} // namespace pentatron::layers
