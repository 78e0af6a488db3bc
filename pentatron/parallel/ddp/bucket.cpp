#include "pentatron/parallel/ddp/bucket.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "pentatron/base/error.h"
#include "pentatron/base/planted_bug.h"

namespace pentatron::parallel {

namespace {

constexpr int64_t kAlignment = 64;

int64_t round_up(int64_t n, int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

} // namespace

std::vector<Bucket> make_buckets(nn::ParamList& params, const BucketOptions& options) {
  std::vector<nn::Param*> order;
  for (nn::Param& param : params) order.push_back(&param);
  std::reverse(order.begin(), order.end());
  std::vector<Bucket> buckets;
  bool closed = true;
  for (nn::Param* const param : order) {
    if (param->dtype() != order.front()->dtype())
      raise<Error>("internal error: {} is {} and {} is {}", param->name(),
                   c10::toString(param->dtype()), order.front()->name(),
                   c10::toString(order.front()->dtype()));
    const std::string shared = nn::shared_axis_of(param->spec(), param->where());
    const bool alone = !shared.empty();
    std::vector<int64_t> units = param->units();
    std::sort(units.begin(), units.end());
    if (closed || alone || (options.split_units && buckets.back().units != units)) {
      buckets.emplace_back();
      buckets.back().shared_axis = shared;
    }
    Bucket& bucket = buckets.back();
    bucket.slots.push_back({param, bucket.length});
    bucket.length += round_up(param->numel(), kAlignment);
    std::vector<int64_t> joined;
    std::set_union(bucket.units.begin(), bucket.units.end(), units.begin(), units.end(),
                   std::back_inserter(joined));
    bucket.units = std::move(joined);
    closed = alone || bucket.length >= options.bucket_size;
  }
  for (Bucket& bucket : buckets)
    bucket.length = round_up(bucket.length, kAlignment * options.num_shards);
  return buckets;
}

std::vector<at::Tensor> cut_by_bucket(const at::Tensor& flat, const std::vector<Bucket>& buckets,
                                      int64_t num_shards) {
  std::vector<at::Tensor> parts;
  int64_t begin = 0;
  for (const Bucket& bucket : buckets) {
    parts.push_back(flat.narrow(0, begin, bucket.length / num_shards));
    begin += bucket.length / num_shards;
  }
  return parts;
}

int64_t flat_size(const std::vector<Bucket>& buckets, int64_t num_shards) {
  int64_t total = 0;
  for (const Bucket& bucket : buckets) total += bucket.length / num_shards;
  return total;
}

at::Tensor shard_of(const at::Tensor& flat, int64_t index, int64_t num_shards) {
  const int64_t size = flat.numel() / num_shards;
  return flat.narrow(0, index * size, size);
}

std::vector<nn::Piece> pieces_of(const Bucket& bucket, int64_t index, int64_t num_shards) {
  if (planted("pieces_of_another_shard")) index = num_shards - 1 - index;
  const int64_t size = bucket.length / num_shards, begin = index * size, end = begin + size;
  std::vector<nn::Piece> pieces;
  for (const Bucket::Slot& slot : bucket.slots) {
    const int64_t from = std::max(begin, slot.begin);
    const int64_t to = std::min(end, slot.begin + slot.param->numel());
    if (from < to) pieces.push_back({slot.param, from - slot.begin, from - begin, to - from});
  }
  return pieces;
}

at::Tensor view_of(const at::Tensor& flat, const Bucket::Slot& slot) {
  return flat.narrow(0, slot.begin, slot.param->numel()).view(slot.param->shape());
}

} // namespace pentatron::parallel
