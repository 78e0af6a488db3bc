/// Parameters put together from tensors under Hugging Face's names, wherever those lie.
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

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
    TensorInfo info{.dtype = parts.front().tensor->dtype, .shape = parts.front().entry.shape};
    info.shape[0] = 0;
    for (const ParamPart<T>& part : parts) {
      info.dtype = wider(info.dtype, part.tensor->dtype);
      info.shape[0] += part.entry.shape[0];
    }
    for (const ParamPart<T>& part : parts)
      if (part.tensor->dtype != info.dtype)
        hf["dtypes"][part.entry.hf] = name_of(part.tensor->dtype);
    infos.emplace(name, std::move(info));
  }
  return infos;
}

/// Fills `target` with a box of the parameter. `rows_of(entry, tensor, begin, rows)` gives rows of
/// a part, as the parameter has them, in whatever type.
template <class T, class RowsOf>
void read_parts(const std::vector<ParamPart<T>>& parts, const Box& box, const at::Tensor& target,
                const RowsOf& rows_of) {
  PT_DCHECK(!box.size.empty());
  const int64_t first = box.offset[0], end = first + box.size[0];
  for (const ParamPart<T>& part : parts) {
    const int64_t begin = std::max(first, part.entry.begin);
    const int64_t last = std::min(end, part.entry.begin + part.entry.shape[0]);
    if (begin >= last) continue;
    at::Tensor source = rows_of(part.entry, *part.tensor, begin - part.entry.begin, last - begin);
    for (size_t d = 1; d < box.size.size(); ++d)
      source = source.narrow(static_cast<int64_t>(d), box.offset[d], box.size[d]);
    target.narrow(0, begin - first, last - begin).copy_(source);
  }
}

} // namespace pentatron::checkpoint
