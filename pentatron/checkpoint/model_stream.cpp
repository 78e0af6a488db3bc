#include "pentatron/checkpoint/model_stream.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "pentatron/base/error.h"
#include "pentatron/checkpoint/hf/parts.h"
#include "pentatron/checkpoint/tensor_io.h"

namespace pentatron::checkpoint {

namespace {

constexpr int64_t kBlockElements = int64_t{2} << 20;

int64_t num_infinite(const at::Tensor& tensor) {
  return tensor.numel() - at::isfinite(tensor).sum().item<int64_t>();
}

/// A type with a smaller range than the stored one may turn numbers into infinities.
void check_range(ModelSource& source, const std::string& param, const Box& box,
                 const at::Tensor& values) {
  const SafeDtype stored = source.facts().tensors.at(param).dtype;
  const at::ScalarType type = scalar_type(stored);
  if (type == values.scalar_type()) return;
  const int64_t infinite = num_infinite(values);
  if (infinite == 0) return;
  const at::Tensor before = at::empty(box.size, at::TensorOptions(type));
  source.read(param, box, before);
  if (num_infinite(before) != infinite)
    raise<CheckpointError>("{} has values that {} cannot represent\n  try: --dtype bf16", param,
                           name_of(safe_dtype(values.scalar_type())));
}

/// A box of the parameter, in pieces of rows of dimension `row_dim`, before which all are 1.
void stream_rows(ModelSource& source, const std::string& param, const Box& whole, size_t row_dim,
                 SafeDtype dtype, const ByteSink& sink) {
  const int64_t rows = whole.size.at(row_dim);
  const int64_t row = std::max<int64_t>(1, rows == 0 ? 0 : numel(whole.size) / rows);
  const int64_t step = std::max<int64_t>(1, kBlockElements / row);
  for (int64_t at_row = 0; at_row < rows; at_row += step) {
    Box box = whole;
    box.offset[row_dim] += at_row;
    box.size[row_dim] = std::min(step, rows - at_row);
    const at::Tensor values = at::empty(box.size, at::TensorOptions(scalar_type(dtype)));
    source.read(param, box, values);
    check_range(source, param, box, values);
    sink({static_cast<const std::byte*>(values.data_ptr()), values.nbytes()});
  }
}

} // namespace

void stream_param(ModelSource& source, const std::string& param, SafeDtype dtype,
                  const ByteSink& sink) {
  stream_rows(source, param, whole_box(source.facts().tensors.at(param).shape), 0, dtype, sink);
}

void stream_entry(ModelSource& source, const WeightMapEntry& entry, SafeDtype dtype,
                  const ByteSink& sink) {
  Box box = whole_box(entry.shape);
  box.offset = entry.origin;
  if (entry.straight()) return stream_rows(source, entry.param, box, entry.row_dim(), dtype, sink);
  const int64_t slices = entry.sliceable() ? entry.shape[0] : 1;
  if (entry.sliceable()) box.size[0] = 1;
  for (int64_t i = 0; i < slices; ++i, ++box.offset[0]) {
    at::Tensor values = at::empty(box.size, at::TensorOptions(scalar_type(dtype)));
    source.read(entry.param, box, values);
    check_range(source, entry.param, box, values);
    values = as_hf(entry, entry.one_of_stack ? values.squeeze(0) : values);
    sink({static_cast<const std::byte*>(values.data_ptr()), values.nbytes()});
  }
}

std::vector<std::vector<size_t>> group_by_size(const std::vector<uint64_t>& bytes,
                                               uint64_t max_bytes) {
  std::vector<std::vector<size_t>> groups;
  uint64_t size = 0;
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (groups.empty() || size + bytes[i] > max_bytes) {
      groups.emplace_back();
      size = 0;
    }
    groups.back().push_back(i);
    size += bytes[i];
  }
  return groups;
}

} // namespace pentatron::checkpoint
