#include <ATen/ATen.h>

#include "pentatron/kernels/embedding/embedding.h"
#include "pentatron/nn/ops/kernel_args.h"
#include "pentatron/nn/ops/ops.h"
#include "pentatron/nn/record.h"

namespace pentatron::nn {

namespace {

void add_gradient(Param& table, const at::Tensor& dy, at::Tensor ids, int64_t row_offset) {
  // No rank has row -1.
  if (table.padding_row >= 0) ids = ids.masked_fill(ids.eq(table.padding_row), -1);
  const kernels::EmbeddingGradientArgs args{.dtype = kernel_dtype(dy.scalar_type()),
                                            .grad_dtype =
                                                kernel_dtype(table.main_grad().scalar_type()),
                                            .tokens = ids.numel(),
                                            .width = dy.size(1),
                                            .dy = dy.data_ptr(),
                                            .ids = ids.data_ptr<int64_t>(),
                                            .rows = table.shape()[0],
                                            .row_offset = row_offset,
                                            .main_grad = table.main_grad().data_ptr()};
  kernels::embedding_gradient(args,
                              KernelContext(dy, dy.is_cuda() ? kernels::workspace_bytes(args) : 0));
  table.accumulated();
}

} // namespace

at::Tensor embedding(const at::Tensor& ids_in, Param& table, Param* positions, int64_t row_offset,
                     const ForwardContext& ctx) {
  ctx.use(&table);
  ctx.use(positions);
  at::Tensor y, ids, position_ids;
  {
    const NoAutograd guard;
    ids = ids_in.contiguous();
    y = at::empty({ids.numel(), table.shape()[1]}, table.value().options());
    if (positions != nullptr) position_ids = ctx.layout->positions.to(at::kLong);
    kernels::embedding(
        {.dtype = kernel_dtype(table.dtype()),
         .out_dtype = kernel_dtype(table.dtype()),
         .tokens = ids.numel(),
         .width = table.shape()[1],
         .table = table.value().data_ptr(),
         .rows = table.shape()[0],
         .row_offset = row_offset,
         .ids = ids.data_ptr<int64_t>(),
         .position_table = positions != nullptr ? positions->value().data_ptr() : nullptr,
         .num_positions = positions != nullptr ? positions->shape()[0] : 0,
         .positions = positions != nullptr ? position_ids.data_ptr<int64_t>() : nullptr,
         .out = y.data_ptr()},
        KernelContext(y));
  }
  if (!table.trainable && (positions == nullptr || !positions->trainable)) return y;
  record("embedding", {}, {y}, {ids, position_ids},
         [&table, positions, row_offset](auto&& grads, Saved& saved) {
           const NoAutograd guard;
           const at::Tensor dy = grads[0].contiguous();
           if (table.trainable) add_gradient(table, dy, saved[0], row_offset);
           if (positions != nullptr && positions->trainable)
             add_gradient(*positions, dy, saved[1], 0);
           return std::vector<at::Tensor>{};
         });
  return y;
}

} // namespace pentatron::nn
