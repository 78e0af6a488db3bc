#include "pentatron/nn/ops/rows.h"

#include <ATen/ATen.h>

#include <atomic>
#include <map>

#include "pentatron/kernels/common/build.h"
#include "pentatron/kernels/rows/rows.h"
#include "pentatron/nn/host_copies.h"
#include "pentatron/nn/ops/kernel_args.h"
#include "pentatron/nn/ops/low_precision.h"
#include "pentatron/nn/ops/matmul.h"
#include "pentatron/nn/param.h"
#include "pentatron/nn/record.h"

namespace pentatron::nn {

namespace {

/// out[r] = sum over j of x[places[r, j]]; places [rows, k] or [rows]. -> [rows, f]
at::Tensor summed(const at::Tensor& x_in, const at::Tensor& places_in) {
  const at::Tensor x = x_in.contiguous(), places = places_in.contiguous();
  at::Tensor y = at::empty({places.size(0), x.size(1)}, x.options());
  kernels::sum_rows({.dtype = kernel_dtype(x.scalar_type()),
                     .rows = y.size(0),
                     .k = places.dim() == 1 ? 1 : places.size(1),
                     .cols = y.size(1),
                     .x = x.data_ptr(),
                     .places = places.const_data_ptr<int64_t>(),
                     .y = y.data_ptr()},
                    KernelContext(x));
  return y;
}

/// [rows, columns] to be written range by range; rows in no range are zero.
at::Tensor for_ranges(const std::vector<RowRange>& ranges, int64_t rows, int64_t columns,
                      const at::TensorOptions& options) {
  int64_t covered = 0;
  for (const RowRange& range : ranges) covered += range.rows;
  return covered == rows ? at::empty({rows, columns}, options)
                         : at::zeros({rows, columns}, options);
}

/// The ranges of each matrix that has some, in order of matrices.
std::map<int64_t, std::vector<RowRange>> by_matrix(const std::vector<RowRange>& ranges) {
  std::map<int64_t, std::vector<RowRange>> result;
  for (const RowRange& range : ranges)
    if (range.rows > 0) result[range.matrix].push_back(range);
  return result;
}

/// The rows of a matrix as one tensor, which is quantised as one.
at::Tensor rows_of(const at::Tensor& x, const std::vector<RowRange>& ranges) {
  std::vector<at::Tensor> parts;
  for (const RowRange& range : ranges) parts.push_back(x.narrow(0, range.begin, range.rows));
  return parts.size() == 1 ? parts[0] : at::cat(parts);
}

void write_rows(const at::Tensor& to, const std::vector<RowRange>& ranges, const at::Tensor& rows) {
  int64_t begin = 0;
  for (const RowRange& range : ranges) {
    to.narrow(0, range.begin, range.rows).copy_(rows.narrow(0, begin, range.rows));
    begin += range.rows;
  }
}

/// The products of all ranges in low precision: x W[m]^T, or with `transposed` x W[m].
void low_precision_products(const at::Tensor& out, const at::Tensor& x,
                            const std::vector<RowRange>& ranges, const Param& weight,
                            bool transposed) {
  const LowPrecision& how = *weight.low_precision;
  if (weight.fp8() == nullptr) // also of matrices that have no rows here
    see_operand(weight.dense_value(), Operand::kWeight, how);
  for (const auto& [matrix, own] : by_matrix(ranges)) {
    const at::Tensor rows = rows_of(x, own);
    const QuantizedValues w = quantized_weight(weight, matrix, transposed);
    const at::Tensor y = at::empty({rows.size(0), out.size(1)}, out.options());
    if (transposed)
      low_precision_nn_into(y, rows, w, how);
    else
      low_precision_nt_into(y, rows, w, how, {});
    write_rows(out, own, y);
  }
}

std::atomic<bool> grouped_on_cpus = false;

/// Whether LibTorch has a kernel for it: on GPUs of capability 9.x and 10.x. On others it makes the
/// host wait for the GPU, and starts a product for each matrix.
bool has_grouped_product(const at::Device& device) {
  if (device.is_cpu()) return grouped_on_cpus.load(std::memory_order_relaxed);
  const int capability = kernels::gpu_capability(device.index());
  return capability >= 90 && capability < 110;
}

/// The ends for grouped_product() on x's device; undefined: one product for each range.
at::Tensor ends_for_product(const at::Tensor& x, const std::vector<RowRange>& ranges,
                            const Param& weight) {
  constexpr int64_t kAligned = 8; // elements in 16 bytes
  if (x.scalar_type() != at::kBFloat16 || weight.low_precision || weight.in_int8 ||
      !x.is_contiguous() || weight.shape()[1] % kAligned != 0 || weight.shape()[2] % kAligned != 0)
    return {};
  if (!has_grouped_product(x.device())) return {};
  const at::Tensor ends = ends_of(ranges, weight.shape()[0], x.size(0));
  return ends.defined() ? to_device(ends, x.device()) : ends;
}

/// The matrix's gradient += dy^T x over its ranges, and that of its bias. On GPUs too one product
/// for each range: LibTorch's grouped product rounds results to bf16, and gradients are summed in
/// fp32.
class GroupedWgrad final : public WgradTask {
 public:
  GroupedWgrad(at::Tensor dy, at::Tensor x, at::Tensor bias_scale, std::vector<RowRange> ranges,
               Param* weight, Param* bias)
      : dy_(std::move(dy)), x_(std::move(x)), bias_scale_(std::move(bias_scale)),
        ranges_(std::move(ranges)), weight_(weight), bias_(bias) {}

  void run() override {
    const NoAutograd guard;
    Param::Sum sum;
    if (weight_ != nullptr) sum = weight_->sum_to_write();
    std::vector<bool> empty(weight_ != nullptr ? static_cast<size_t>(weight_->shape()[0]) : 0,
                            sum.empty); // of each matrix
    const bool low = weight_ != nullptr && weight_->low_precision.has_value();
    if (low)
      for (const auto& [matrix, own] : by_matrix(ranges_)) {
        add_low_precision_tn(sum.tensor.select(0, matrix), rows_of(dy_, own), rows_of(x_, own),
                             *weight_->low_precision, sum.empty);
        empty[static_cast<size_t>(matrix)] = false;
      }
    for (const RowRange& range : ranges_) {
      const at::Tensor dy = dy_.narrow(0, range.begin, range.rows);
      if (weight_ != nullptr && !low) {
        const auto matrix = static_cast<size_t>(range.matrix);
        add_matmul_tn(sum.tensor.select(0, range.matrix), dy, x_.narrow(0, range.begin, range.rows),
                      empty[matrix]);
        empty[matrix] = false;
      }
      if (bias_ != nullptr) {
        const at::Tensor grad = bias_->main_grad().select(0, range.matrix);
        if (bias_scale_.defined()) {
          const at::Tensor scale = bias_scale_.narrow(0, range.begin, range.rows);
          grad.add_(at::mv(dy.to(grad.scalar_type()).t(), scale));
        } else {
          add_column_sums(grad, dy);
        }
      }
    }
    for (size_t matrix = 0; matrix < empty.size(); ++matrix)
      if (empty[matrix]) sum.tensor.select(0, static_cast<int64_t>(matrix)).zero_();
    // Also where no row was of this rank's matrices: the uses were announced.
    if (weight_ != nullptr) weight_->accumulated();
    if (bias_ != nullptr) bias_->accumulated();
  }
  std::vector<at::Tensor> holds() const override { return {dy_, x_, bias_scale_}; }

 private:
  at::Tensor dy_, x_, bias_scale_;
  std::vector<RowRange> ranges_;
  Param *weight_, *bias_;
};

} // namespace

at::Tensor take_rows(const at::Tensor& x, const at::Tensor& source, const at::Tensor& places) {
  at::Tensor y;
  {
    const NoAutograd guard;
    y = summed(x.detach(), source);
  }
  record("take_rows", {x}, {y}, {places}, [](auto&& grads, Saved& saved) {
    const NoAutograd guard;
    return std::vector<at::Tensor>{summed(grads[0], saved[0])};
  });
  return y;
}

at::Tensor sum_rows(const at::Tensor& rows, const at::Tensor& source, const at::Tensor& places) {
  at::Tensor y;
  {
    const NoAutograd guard;
    y = summed(rows.detach(), places);
  }
  record("sum_rows", {rows}, {y}, {source}, [](auto&& grads, Saved& saved) {
    const NoAutograd guard;
    return std::vector<at::Tensor>{summed(grads[0], saved[0])};
  });
  return y;
}

at::Tensor grouped_product(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& ends,
                           bool transposed) {
  return at::_grouped_mm(x, transposed ? weight : weight.transpose(1, 2), ends);
}

void use_grouped_product_on_cpus(bool use) {
  grouped_on_cpus.store(use);
}

at::Tensor ends_of(const std::vector<RowRange>& ranges, int64_t matrices, int64_t rows) {
  at::Tensor ends = at::empty({matrices}, at::kInt);
  auto* const end = ends.mutable_data_ptr<int32_t>();
  int64_t matrix = 0, behind = 0;
  for (const RowRange& range : ranges) {
    if (range.rows == 0) continue;
    if (range.matrix < matrix || range.begin != behind) return {};
    while (matrix < range.matrix) end[matrix++] = static_cast<int32_t>(behind);
    behind += range.rows;
    end[matrix++] = static_cast<int32_t>(behind);
  }
  while (matrix < matrices) end[matrix++] = static_cast<int32_t>(behind);
  return behind == rows && rows > 0 ? ends : at::Tensor();
}

at::Tensor grouped_linear(const at::Tensor& x, std::vector<RowRange> ranges, Param& weight,
                          Param* bias, const at::Tensor& bias_scale, const ForwardContext& ctx) {
  ctx.use(&weight);
  ctx.use(bias);
  const at::ScalarType acc = acc_dtype(x.scalar_type());
  at::Tensor y;
  {
    const NoAutograd guard;
    const at::Tensor ends = ends_for_product(x, ranges, weight);
    y = ends.defined() ? grouped_product(x.detach(), weight.value(), ends, false)
                       : for_ranges(ranges, x.size(0), weight.shape()[1], x.options());
    if (weight.low_precision) low_precision_products(y, x.detach(), ranges, weight, false);
    for (const RowRange& range : ranges) {
      const at::Tensor out = y.narrow(0, range.begin, range.rows);
      const at::Tensor row_bias =
          bias != nullptr ? bias->value().select(0, range.matrix) : at::Tensor();
      const bool scaled = bias != nullptr && bias_scale.defined();
      if (!weight.low_precision && !ends.defined())
        matmul_nt_into(out, x.detach().narrow(0, range.begin, range.rows),
                       weight.dense_matrix(range.matrix), scaled ? at::Tensor() : row_bias);
      else if (bias != nullptr && !scaled)
        out.add_(row_bias);
      if (scaled)
        out.add_((row_bias.to(acc).unsqueeze(0) *
                  bias_scale.detach().narrow(0, range.begin, range.rows).unsqueeze(1))
                     .to(out.scalar_type()));
    }
  }
  const bool has_scale = bias != nullptr && bias_scale.defined();
  const bool trains = weight.trainable || (bias != nullptr && bias->trainable);
  record("grouped_linear", {x, has_scale ? bias_scale : at::Tensor()}, {y},
         {trains ? x : at::Tensor(), has_scale ? bias_scale.detach() : at::Tensor()},
         [&weight, bias, ranges, queue = ctx.wgrad, wants_dx = x.requires_grad(),
          wants_scale = has_scale && bias_scale.requires_grad()](auto&& grads, Saved& saved) {
           const NoAutograd guard;
           const at::Tensor dy = grads[0].contiguous();
           at::Tensor dx, dscale;
           if (wants_dx) {
             const at::Tensor ends = ends_for_product(dy, ranges, weight);
             dx = ends.defined() ? grouped_product(dy, weight.value(), ends, true)
                                 : for_ranges(ranges, dy.size(0), weight.shape()[2], dy.options());
             if (weight.low_precision) low_precision_products(dx, dy, ranges, weight, true);
             for (const RowRange& range : ranges)
               if (!weight.low_precision && !ends.defined())
                 matmul_nn_into(dx.narrow(0, range.begin, range.rows),
                                dy.narrow(0, range.begin, range.rows),
                                weight.dense_matrix(range.matrix));
           }
           if (wants_scale) {
             const at::ScalarType acc = saved[1].scalar_type();
             dscale = at::zeros({dy.size(0)}, dy.options().dtype(acc));
             for (const RowRange& range : ranges)
               dscale.narrow(0, range.begin, range.rows)
                   .copy_(at::mv(dy.narrow(0, range.begin, range.rows).to(acc),
                                 bias->value().select(0, range.matrix).to(acc)));
           }
           Param* const trained_bias = bias != nullptr && bias->trainable ? bias : nullptr;
           if (weight.trainable || trained_bias != nullptr)
             queue->push(std::make_unique<GroupedWgrad>(dy, saved.take(0), saved.take(1), ranges,
                                                        weight.trainable ? &weight : nullptr,
                                                        trained_bias));
           return std::vector<at::Tensor>{dx, dscale};
         });
  return y;
}

} // namespace pentatron::nn
