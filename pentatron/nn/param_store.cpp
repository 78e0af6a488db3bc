#include "pentatron/nn/param_store.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "pentatron/base/error.h"
#include "pentatron/nn/memory/counting_allocator.h"

namespace pentatron::nn {

std::vector<FlatRange> ranges_in_shard(const Piece& piece, const std::vector<FlatRange>& ranges) {
  std::vector<FlatRange> result;
  for (const FlatRange& range : ranges) {
    const int64_t begin = std::max(range.begin, piece.param_begin);
    const int64_t end = std::min(range.begin + range.size, piece.param_begin + piece.size);
    if (begin < end) result.push_back({piece.begin + begin - piece.param_begin, end - begin});
  }
  return result;
}

namespace {

/// Families in order of their first parameter, those that train first.
std::vector<Param*> by_family(ParamList& params) {
  std::vector<ParamFamily> families;
  const auto number = [&families](const Param& param) {
    const auto found = std::ranges::find(families, param.family());
    if (found != families.end()) return found - families.begin();
    families.push_back(param.family());
    return std::ssize(families) - 1;
  };
  std::vector<std::pair<std::pair<bool, std::ptrdiff_t>, Param*>> numbered;
  for (Param& param : params) numbered.push_back({{!param.trainable, number(param)}, &param});
  std::ranges::stable_sort(numbered, {}, [](const auto& one) { return one.first; });
  std::vector<Param*> order;
  for (const auto& one : numbered) order.push_back(one.second);
  return order;
}

} // namespace

ResidentStore::ResidentStore(ParamList& params, at::Device device, bool gradients) {
  constexpr int64_t kAlignment = 64;
  int64_t total = 0, trained = 0;
  at::ScalarType dtype = at::kFloat;
  for (Param* const param : by_family(params)) {
    PT_DCHECK(ranges_.empty() || param->dtype() == dtype);
    dtype = param->dtype();
    if (!gradients && param->value().defined()) continue;
    ranges_.push_back({param, total, param->numel()});
    total += (param->numel() + kAlignment - 1) / kAlignment * kAlignment;
    if (param->trainable) trained = total;
  }
  {
    const MemoryScope scope(MemoryCategory::kParameters);
    values_ = at::zeros({total}, at::TensorOptions(dtype).device(device));
  }
  if (gradients) {
    const MemoryScope scope(MemoryCategory::kGradients);
    gradients_ = at::zeros({trained}, at::TensorOptions(acc_dtype(dtype)).device(device));
  }
  for (const Range& range : ranges_) {
    const auto view = [&](const at::Tensor& flat) {
      return flat.narrow(0, range.begin, range.size).view(range.param->shape());
    };
    range.param->set_value(view(values_));
    range.param->set_main_grad(gradients && range.param->trainable ? view(gradients_)
                                                                   : at::Tensor());
  }
}

std::vector<Shard> ResidentStore::shards() const {
  std::vector<Shard> shards;
  for (size_t first = 0; first < ranges_.size();) {
    const int64_t begin = ranges_[first].begin;
    const ParamFamily family = ranges_[first].param->family();
    Shard shard;
    size_t next = first;
    for (; next < ranges_.size() && ranges_[next].param->family() == family; ++next)
      shard.pieces.push_back(
          {ranges_[next].param, 0, ranges_[next].begin - begin, ranges_[next].size});
    const int64_t end = next < ranges_.size() ? ranges_[next].begin : values_.numel();
    shard.values = values_.narrow(0, begin, end - begin);
    if (family.trainable && gradients_.defined())
      shard.gradients = gradients_.narrow(0, begin, end - begin);
    shards.push_back(std::move(shard));
    first = next;
  }
  return shards;
}

} // namespace pentatron::nn
