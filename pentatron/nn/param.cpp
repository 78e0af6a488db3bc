#include "pentatron/nn/param.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <utility>

#include <fmt/ranges.h>

#include "pentatron/base/error.h"
#include "pentatron/base/planted_bug.h"

namespace pentatron::nn {

at::ScalarType acc_dtype(at::ScalarType dtype) {
  return dtype == at::kDouble ? at::kDouble : at::kFloat;
}

Param::Param(ShardSpec spec, Init init, at::ScalarType dtype, const Coordinates& where,
             int64_t segment)
    : spec_(std::move(spec)), init_(init), dtype_(dtype), where_(where),
      shape_(local_shape(spec_, where)), segments_{segment} {}

void Param::used_by(int64_t segment) {
  if (std::find(segments_.begin(), segments_.end(), segment) == segments_.end())
    segments_.push_back(segment);
}

int64_t Param::numel() const {
  int64_t n = 1;
  for (const int64_t extent : shape_) n *= extent;
  return n;
}

void Param::set_value(at::Tensor value) {
  PT_DCHECK(!value.defined() || value.sizes() == at::IntArrayRef(shape_));
  value_ = std::move(value);
}

void Param::set_main_grad(at::Tensor main_grad) {
  PT_DCHECK(!main_grad.defined() || main_grad.sizes() == at::IntArrayRef(shape_));
  main_grad_ = std::move(main_grad);
  empty_ = false;
}

const at::Tensor& Param::main_grad() const {
  if (!main_grad_.defined() && need_main_grad) need_main_grad(const_cast<Param&>(*this));
  if (std::exchange(empty_, false)) main_grad_.zero_();
  return main_grad_;
}

Param::Sum Param::sum_to_write() {
  if (!main_grad_.defined() && need_main_grad) need_main_grad(*this);
  return {main_grad_, std::exchange(empty_, false)};
}

void Param::define_sums(const std::vector<Param*>& params) {
  std::vector<at::Tensor> cleared;
  for (Param* const param : params) {
    if (!param->main_grad_.defined() && param->need_main_grad) param->need_main_grad(*param);
    if (std::exchange(param->empty_, false)) cleared.push_back(param->main_grad_);
  }
  if (!cleared.empty()) at::_foreach_zero_(cleared);
}

namespace {

at::Tensor narrow_box(at::Tensor tensor, const std::vector<int64_t>& offset,
                      const std::vector<int64_t>& size) {
  for (size_t dim = 0; dim < size.size(); ++dim) {
    tensor = tensor.narrow(static_cast<int64_t>(dim), offset[dim], size[dim]);
  }
  return tensor;
}

/// Writes random numbers of the box's global addresses into a new CPU tensor of the box's size.
at::Tensor random_box(const ShardSpec& spec, const LocalBox& box, const Stream& stream,
                      const Init& init) {
  const bool uniform = init.kind == Init::Kind::kUniform;
  at::Tensor block = at::empty(box.size, at::kDouble);
  double* out = block.data_ptr<double>();
  const int64_t columns = box.size.back();
  const int64_t rows = columns == 0 ? 0 : block.numel() / columns;
  at::parallel_for(0, rows, std::max<int64_t>(1, 4096 / std::max<int64_t>(1, columns)),
                   [&](int64_t begin, int64_t end) {
                     for (int64_t row = begin; row < end; ++row) {
                       int64_t rest = row, index = 0, stride = spec.shape.back();
                       index =
                           (planted("initialised_by_local_index") ? box.local : box.global).back();
                       for (size_t dim = box.size.size() - 1; dim-- > 0;) {
                         index += (box.global[dim] + rest % box.size[dim]) * stride;
                         rest /= box.size[dim];
                         stride *= spec.shape[dim];
                       }
                       for (int64_t c = 0; c < columns; ++c) {
                         const auto at = static_cast<uint64_t>(index + c);
                         out[row * columns + c] = init.value * (uniform ? 2 * stream.uniform(at) - 1
                                                                        : stream.normal(at));
                       }
                     }
                   });
  return block;
}

} // namespace

void Param::initialize(uint64_t seed) {
  if (init_.kind == Init::Kind::kConstant && spec_.shard_multiple == 0) {
    value_.fill_(init_.value);
    return;
  }
  value_.zero_();
  const Stream stream(seed, "init/" + spec_.name);
  for (const LocalBox& box : local_boxes(spec_, where_)) {
    at::Tensor target = narrow_box(value_, box.local, box.size);
    if (init_.kind == Init::Kind::kConstant) {
      target.fill_(init_.value);
    } else {
      target.copy_(random_box(spec_, box, stream, init_));
    }
  }
}

at::Tensor Param::dense_value() const {
  if (fp8_) return fp8_->dense(dtype_);
  if (!int8_) return value_;
  return int8_->rows(0, int8_->num_rows(), dtype_).view(shape_);
}

at::Tensor Param::dense_matrix(int64_t matrix) const {
  if (fp8_) return dense_value().select(0, matrix);
  if (!int8_) return value_.select(0, matrix);
  return int8_->rows(matrix * shape_[1], shape_[1], dtype_);
}

at::Tensor Param::dense_rows(int64_t first, int64_t count) const {
  if (fp8_) return dense_value().narrow(0, first, count);
  return int8_ ? int8_->rows(first, count, dtype_) : value_.narrow(0, first, count);
}

void Param::write_int8(at::Device device, const std::function<void(Param&)>& fill) {
  const int64_t block = Int8Weight::block_of(spec_.shape.back());
  if (shape_.back() % block != 0)
    raise<ConfigError>(
        "peft.base_dtype=int8 uses one scale per {} columns, which does not divide the {} (of {}) "
        "columns of {} on a rank\n  try: a smaller parallel.tensor_model_parallel_size",
        block, shape_.back(), spec_.shape.back(), name());
  set_value(at::empty(shape_, at::TensorOptions(acc_dtype(dtype_)).device(device)));
  fill(*this);
  int8_ = std::make_shared<const Int8Weight>(value_, block);
  set_value({});
}

void Param::read_int8(const std::function<void(Param&)>& visit) {
  set_value(dense_value());
  visit(*this);
  set_value({});
}

void Param::accumulate(const at::Tensor& grad) {
  main_grad().add_(grad.reshape(shape_));
  accumulated();
}

void Param::accumulated() {
  // Also where nothing was added, as by a head without targets in a microbatch: the ranks of an
  // axis sum the same gradients.
  if (!planted("idle_uses_have_no_gradient")) main_grad();
  if (--outstanding_uses_ < 0) {
    raise<Error>("internal error: {} received more gradients than its forward passes announced",
                 name());
  }
  if (outstanding_uses_ == 0 && on_ready) on_ready(*this);
}

Param& ParamList::add(ShardSpec spec, Init init, at::ScalarType dtype, const Coordinates& where,
                      int64_t segment) {
  return params_.emplace_back(std::move(spec), init, dtype, where, segment);
}

Param& ParamList::add_buffer(ShardSpec spec, Init init, at::ScalarType dtype,
                             const Coordinates& where, int64_t segment) {
  return buffers_.emplace_back(std::move(spec), init, acc_dtype(dtype), where, segment);
}

void ParamList::make_buffers(at::Device device) {
  for (Param& buffer : buffers_) {
    buffer.set_value(at::empty(buffer.shape(), at::device(device).dtype(buffer.dtype())));
    buffer.initialize(0);
  }
}

Param* ParamList::find_or_null(const std::string& name) {
  for (Param& param : params_) {
    if (param.name() == name) return &param;
  }
  return nullptr;
}

Param& ParamList::find(const std::string& name) {
  if (Param* const param = find_or_null(name)) return *param;
  raise<Error>("the model has no parameter named {}", name);
}

double product_flops(const Param& weight, const LayerShape& shape) {
  int64_t rows = 0;
  switch (weight.multiplies) {
  case ProductRows::kNone:
    break;
  case ProductRows::kTokens:
    rows = shape.tokens;
    break;
  case ProductRows::kMemory:
    rows = shape.memory_tokens;
    break;
  case ProductRows::kLogits:
    rows = shape.head_rows.value_or(shape.tokens);
    break;
  }
  return 2.0 * static_cast<double>(rows) * weight.share_multiplied *
         static_cast<double>(weight.spec().numel());
}

void load_global(Param& param, const at::Tensor& global) {
  if (global.sizes() != at::IntArrayRef(param.spec().shape)) {
    raise<CheckpointError>("{} has shape {} in the file, but {} in the model", param.name(),
                           fmt::join(global.sizes().vec(), "x"),
                           fmt::join(param.spec().shape, "x"));
  }
  at::Tensor value = param.value();
  if (param.spec().shard_multiple > 0) value.zero_();
  for (const LocalBox& box : local_boxes(param.spec(), param.where())) {
    narrow_box(value, box.local, box.size).copy_(narrow_box(global, box.global, box.size));
  }
}

void store_global(const Param& param, const at::Tensor& local, at::Tensor& global) {
  for (const LocalBox& box : local_boxes(param.spec(), param.where())) {
    narrow_box(global, box.global, box.size).copy_(narrow_box(local, box.local, box.size));
  }
}

} // namespace pentatron::nn
