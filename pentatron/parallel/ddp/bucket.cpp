#include "pentatron/parallel/ddp/bucket.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

#include "pentatron/base/planted_bug.h"

namespace pentatron::parallel {

namespace {

constexpr int64_t kAlignment = 64;

int64_t round_up(int64_t n, int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

/// Gives every shard whole parameters.
void lay_out_whole(Bucket& bucket, std::vector<int64_t>& filled) {
  std::vector<int64_t> sizes;
  for (const Bucket::Slot& slot : bucket.slots)
    sizes.push_back(round_up(slot.param->numel(), kAlignment));
  const std::vector<int64_t> shard_of_slot = share_out(sizes, filled);
  bucket.shards.assign(filled.size(), 0);
  std::vector<std::vector<Bucket::Slot>> of_shard(filled.size());
  for (size_t i = 0; i < bucket.slots.size(); ++i) {
    const auto shard = static_cast<size_t>(shard_of_slot[i]);
    of_shard[shard].push_back(bucket.slots[i]);
    bucket.shards[shard] += sizes[i];
  }
  bucket.slots.clear();
  bucket.length = 0;
  for (const std::vector<Bucket::Slot>& slots : of_shard)
    for (Bucket::Slot slot : slots) {
      slot.begin = bucket.length;
      bucket.length += round_up(slot.param->numel(), kAlignment);
      bucket.slots.push_back(slot);
    }
}

void lay_out_evenly(Bucket& bucket, int64_t num_shards) {
  bucket.length = round_up(bucket.length, kAlignment * num_shards);
  bucket.shards.assign(static_cast<size_t>(num_shards), bucket.length / num_shards);
}

int64_t begin_of(const Bucket& bucket, int64_t index) {
  return std::accumulate(bucket.shards.begin(), bucket.shards.begin() + index, int64_t{0});
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
    const bool full = bucket.length >= options.bucket_size;
    if (alone || full) open.erase(found);
  }
  std::vector<int64_t> filled(static_cast<size_t>(options.num_shards), 0);
  // What several pipeline ranks hold lies in the same shard on all of them, whatever else they
  // have.
  for (Bucket& bucket : buckets)
    if (family_of(bucket).whole && !bucket.shared_axis.empty()) {
      std::vector<int64_t> none(filled.size(), 0);
      lay_out_whole(bucket, none);
      std::ranges::transform(filled, none, filled.begin(), std::plus());
    }
  for (Bucket& bucket : buckets) {
    if (!family_of(bucket).whole)
      lay_out_evenly(bucket, options.num_shards);
    else if (bucket.shared_axis.empty())
      lay_out_whole(bucket, filled);
  }
  return buckets;
}

std::vector<int64_t> lengths_of(const std::vector<Bucket>& buckets) {
  std::vector<int64_t> lengths;
  for (const Bucket& bucket : buckets) lengths.push_back(bucket.length);
  return lengths;
}

std::vector<int64_t> shard_lengths_of(const std::vector<Bucket>& buckets, int64_t index) {
  std::vector<int64_t> lengths;
  for (const Bucket& bucket : buckets) lengths.push_back(bucket.shards[static_cast<size_t>(index)]);
  return lengths;
}

at::Tensor shard_of(const at::Tensor& flat, const Bucket& bucket, int64_t index) {
  return flat.narrow(0, begin_of(bucket, index), bucket.shards[static_cast<size_t>(index)]);
}

std::vector<nn::Piece> pieces_of(const Bucket& bucket, int64_t index) {
  const std::vector<int64_t>& shards = bucket.shards;
  if (planted("pieces_of_another_shard") && std::ranges::min(shards) == std::ranges::max(shards))
    index = std::ssize(shards) - 1 - index;
  const int64_t begin = begin_of(bucket, index);
  const int64_t end = begin + shards[static_cast<size_t>(index)];
  std::vector<nn::Piece> pieces;
  for (const Bucket::Slot& slot : bucket.slots) {
    const int64_t from = std::max(begin, slot.begin);
    const int64_t to = std::min(end, slot.begin + slot.param->numel());
    if (from < to) pieces.push_back({slot.param, from - slot.begin, from - begin, to - from});
  }
  return pieces;
}

std::vector<int64_t> share_out(const std::vector<int64_t>& sizes, std::vector<int64_t>& filled) {
  std::vector<size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, std::greater(), [&](size_t i) { return sizes[i]; });
  using Shard = std::pair<int64_t, int64_t>; // elements, index
  std::vector<Shard> least;                  // a heap with the least in front
  for (int64_t shard = 0; shard < std::ssize(filled); ++shard)
    least.emplace_back(filled[static_cast<size_t>(shard)], shard);
  std::ranges::make_heap(least, std::greater());
  std::vector<int64_t> shards(sizes.size());
  for (const size_t i : order) {
    std::ranges::pop_heap(least, std::greater());
    auto& [elements, shard] = least.back();
    shards[i] = shard;
    elements = filled[static_cast<size_t>(shard)] += sizes[i];
    std::ranges::push_heap(least, std::greater());
  }
  return shards;
}

at::Tensor view_of(const at::Tensor& flat, const Bucket::Slot& slot) {
  return flat.narrow(0, slot.begin, slot.param->numel()).view(slot.param->shape());
}

} // namespace pentatron::parallel
