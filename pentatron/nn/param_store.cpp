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

ResidentStore::ResidentStore(ParamList& params, at::Device device, bool gradients) {
  constexpr int64_t kAlignment = 64;
  int64_t total = 0;
  at::ScalarType dtype = at::kFloat;
  for (Param& param : params) {
    PT_DCHECK(&param == &*params.begin() || param.dtype() == dtype);
    dtype = param.dtype();
    if (!gradients && param.value().defined()) continue;
    ranges_.push_back({&param, total, param.numel()});
    total += (param.numel() + kAlignment - 1) / kAlignment * kAlignment;
  }
  {
    const MemoryScope scope(MemoryCategory::kParameters);
    values_ = at::zeros({total}, at::TensorOptions(dtype).device(device));
  }
  if (gradients) {
    const MemoryScope scope(MemoryCategory::kGradients);
    gradients_ = at::zeros({total}, at::TensorOptions(acc_dtype(dtype)).device(device));
  }
  for (const Range& range : ranges_) {
    const auto view = [&](const at::Tensor& flat) {
      return flat.defined() ? flat.narrow(0, range.begin, range.size).view(range.param->shape())
                            : at::Tensor();
    };
    range.param->set_value(view(values_));
    range.param->set_main_grad(view(gradients_));
  }
}

std::vector<Shard> ResidentStore::shards() const {
  Shard shard{values_, gradients_, {}};
  for (const Range& range : ranges_)
    shard.pieces.push_back({range.param, 0, range.begin, range.size});
  return {shard};
}

void ResidentStore::zero_grad() {
  gradients_.zero_();
}

} // namespace pentatron::nn
