#include "pentatron/parallel/ddp/bucket.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>

#include "pentatron/base/planted_bug.h"

namespace pentatron::parallel {

namespace {

constexpr int64_t kAlignment = 64;

int64_t round_up(int64_t n, int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

/// Gives every shard whole parameters: the largest first, to the shard that has least.
void lay_out_whole(Bucket& bucket, int64_t num_shards) {
  std::vector<Bucket::Slot*> order;
  for (Bucket::Slot& slot : bucket.slots) order.push_back(&slot);
  std::ranges::stable_sort(order, std::greater(),
                           [](const Bucket::Slot* slot) { return slot->param->numel(); });
  std::vector<int64_t> filled(static_cast<size_t>(num_shards), 0);
  std::map<const Bucket::Slot*, std::ptrdiff_t> shards;
  for (Bucket::Slot* const slot : order) {
    const auto least = std::ranges::min_element(filled);
    shards[slot] = least - filled.begin();
    slot->begin = *least;
    *least += round_up(slot->param->numel(), kAlignment);
  }
  const int64_t size = std::ranges::max(filled);
  for (Bucket::Slot& slot : bucket.slots) slot.begin += shards[&slot] * size;
  std::ranges::sort(bucket.slots, {}, &Bucket::Slot::begin);
  bucket.length = size * num_shards;
}

} // namespace

std::vector<Bucket> make_buckets(const std::vector<nn::Param*>& params,
                                 const BucketOptions& options) {
  const std::vector<nn::Param*> order(params.rbegin(), params.rend());
  std::vector<Bucket> buckets;
  const auto family_of = [](const Bucket& b) { return b.slots.front().param->family(); };
  std::vector<size_t> open; // at most one of each family
  for (nn::Param* const param : order) {
    const nn::ParamFamily family = param->family();
    const std::string shared =
        param->trainable ? nn::shared_axis_of(param->spec(), param->where()) : "";
    const bool alone = !shared.empty();
    std::vector<int64_t> segments = param->segments();
    std::sort(segments.begin(), segments.end());
    auto found =
        std::ranges::find_if(open, [&](size_t b) { return family_of(buckets[b]) == family; });
    if (found != open.end() &&
        (alone || (options.split_segments && buckets[*found].segments != segments))) {
      open.erase(found);
      found = open.end();
    }
    if (found == open.end()) {
      found = open.insert(open.end(), buckets.size());
      buckets.emplace_back();
      buckets.back().shared_axis = shared;
    }
    Bucket& bucket = buckets[*found];
    bucket.slots.push_back({param, bucket.length});
    bucket.length += round_up(param->numel(), kAlignment);
    std::vector<int64_t> joined;
    std::set_union(bucket.segments.begin(), bucket.segments.end(), segments.begin(), segments.end(),
                   std::back_inserter(joined));
    bucket.segments = std::move(joined);
    const bool full = bucket.length >= options.bucket_size &&
                      (!family.whole || std::ssize(bucket.slots) >= options.num_shards);
    if (alone || full) open.erase(found);
  }
  for (Bucket& bucket : buckets) {
    if (family_of(bucket).whole)
      lay_out_whole(bucket, options.num_shards);
    else
      bucket.length = round_up(bucket.length, kAlignment * options.num_shards);
  }
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
