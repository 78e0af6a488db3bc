/// Parameters put together from tensors under Hugging Face's names, wherever those lie.
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "pentatron/base/error.h"
#include "pentatron/base/json.h"
#include "pentatron/checkpoint/hf/weight_map.h"
#include "pentatron/checkpoint/sharded/manifest.h"

namespace pentatron::checkpoint {

/// A tensor of the files that is a part of a parameter. T has `dtype` and `shape`.
template <class T> struct ParamPart {
  WeightMapEntry entry;
  const T* tensor = nullptr;
};
/// The parts of every parameter, first rows first.
template <class T> using PartsByParam = std::map<std::string, std::vector<ParamPart<T>>>;

/// The type of a parameter whose parts have these: no part loses anything.
inline SafeDtype wider(SafeDtype a, SafeDtype b) {
  if (a == b) return a;
  return a == SafeDtype::kF64 || b == SafeDtype::kF64 ? SafeDtype::kF64 : SafeDtype::kF32;
}

/// Shapes and types of the parameters; types that had to be widened go to hf["dtypes"].
template <class T> TensorInfos describe_parts(const PartsByParam<T>& all, Json& hf) {
  TensorInfos infos;
  for (const auto& [name, parts] : all) {
    TensorInfo info{.dtype = parts.front().tensor->dtype,
                    .shape = std::vector<int64_t>(parts.front().entry.shape.size(), 0)};
    for (const ParamPart<T>& part : parts) {
      info.dtype = wider(info.dtype, part.tensor->dtype);
      for (size_t d = 0; d < info.shape.size(); ++d)
        info.shape[d] = std::max(info.shape[d], part.entry.origin[d] + part.entry.shape[d]);
    }
    for (const ParamPart<T>& part : parts)
      if (part.tensor->dtype != info.dtype)
        hf["dtypes"][part.entry.hf] = name_of(part.tensor->dtype);
    infos.emplace(name, std::move(info));
  }
  return infos;
}

/// A tensor of the files, or some slices of one that is sliceable, as the parameter has it; and
/// back.
inline at::Tensor as_parameter(const WeightMapEntry& entry, at::Tensor tensor) {
  if (entry.transposed) tensor = tensor.transpose(-2, -1);
  if (entry.alternating == 1) return tensor;
  const int64_t dim = entry.parts_dim - static_cast<int64_t>(entry.row_dim());
  return tensor.unflatten(dim, {-1, entry.alternating})
      .transpose(dim, dim + 1)
      .flatten(dim, dim + 1);
}
inline at::Tensor as_hf(const WeightMapEntry& entry, at::Tensor values) {
  if (entry.alternating > 1) {
    const int64_t dim = entry.parts_dim - static_cast<int64_t>(entry.row_dim());
    values = values.unflatten(dim, {entry.alternating, -1})
                 .transpose(dim, dim + 1)
                 .flatten(dim, dim + 1);
  }
  return (entry.transposed ? values.transpose(-2, -1) : values).contiguous();
}

/// Fills `target` with a box of the parameter. `rows_of(entry, tensor, begin, rows)` gives rows of
/// a tensor as the parameter has it, in whatever type.
template <class T, class RowsOf>
void read_parts(const std::vector<ParamPart<T>>& parts, const Box& box, const at::Tensor& target,
                const RowsOf& rows_of) {
  PT_DCHECK(!box.size.empty());
  const size_t dims = box.size.size();
  for (const ParamPart<T>& part : parts) {
    const WeightMapEntry& entry = part.entry;
    std::vector<int64_t> begin(dims), size(dims); // of what both have, in the parameter
    bool common = true;
    for (size_t d = 0; d < dims; ++d) {
      begin[d] = std::max(box.offset[d], entry.origin[d]);
      size[d] = std::min(box.offset[d] + box.size[d], entry.origin[d] + entry.shape[d]) - begin[d];
      common = common && size[d] > 0;
    }
    if (!common) continue;
    const size_t row = entry.row_dim();
    at::Tensor source = rows_of(entry, *part.tensor, begin[row] - entry.origin[row], size[row]);
    if (entry.one_of_stack) source = source.unsqueeze(0);
    at::Tensor place = target;
    for (size_t d = 0; d < dims; ++d) {
      const auto dim = static_cast<int64_t>(d);
      if (d != row) source = source.narrow(dim, begin[d] - entry.origin[d], size[d]);
      place = place.narrow(dim, begin[d] - box.offset[d], size[d]);
    }
    place.copy_(source);
  }
}

} // namespace pentatron::checkpoint
