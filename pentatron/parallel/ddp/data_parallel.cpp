#include "pentatron/parallel/ddp/data_parallel.h"

#include <ATen/ATen.h>

#include <algorithm>

#include <fmt/format.h>

#include "pentatron/base/error.h"
#include "pentatron/base/planted_bug.h"
#include "pentatron/comm/collectives.h"
#include "pentatron/optim/optimizer.h"

namespace pentatron::parallel {

namespace {

/// How an axis is cut: `shard` ranks share the elements of a bucket, `replicas` own the same ones.
struct Sharding {
  comm::Group shard, replicas;
};

Sharding make_sharding(const comm::ParallelGroups& groups, const std::string& axis,
                       const DdpConfig& config) {
  const comm::Group& whole = groups.get(axis);
  const int64_t instances = config.num_distributed_optimizer_instances;
  if (config.zero_stage == 0 || instances == whole.size()) return {.shard = {}, .replicas = whole};
  if (instances == 1) return {.shard = whole, .replicas = {}};
  return {.shard = groups.get(axis + "-shard"), .replicas = groups.get(axis + "-replicas")};
}

} // namespace

std::vector<comm::NeededGroup> data_parallel_groups(const std::string& axis, int size,
                                                    const DdpConfig& config) {
  const auto instances = static_cast<int>(config.num_distributed_optimizer_instances);
  if (size % instances != 0) {
    raise<ConfigError>("ddp.num_distributed_optimizer_instances={} does not divide the {} "
                       "data-parallel ranks\n  try: ddp.num_distributed_optimizer_instances={}",
                       instances, size, config::nearest_divisor(size, instances));
  }
  std::vector<comm::NeededGroup> needed = {comm::NeededGroup::of_axes(axis)};
  if (config.zero_stage == 0 || instances == size || instances == 1) return needed;
  const int each = size / instances;
  std::vector<std::vector<int>> shards(static_cast<size_t>(instances)),
      replicas(static_cast<size_t>(each));
  for (int rank = 0; rank < size; ++rank) {
    shards[static_cast<size_t>(rank / each)].push_back(rank);
    replicas[static_cast<size_t>(rank % each)].push_back(rank);
  }
  needed.push_back({axis + "-shard", axis, std::move(shards)});
  needed.push_back({axis + "-replicas", axis, std::move(replicas)});
  return needed;
}

DataParallel::DataParallel(nn::ParamList& params, at::Device device, const DdpConfig& config,
                           const comm::ParallelGroups& groups) {
  const Sharding sharding = make_sharding(groups, "dp", config);
  const comm::Group& shard = sharding.shard;
  replicas_ = sharding.replicas;
  const int64_t stage = shard.size() == 1 ? 0 : config.zero_stage; // nothing to split
  buckets_ = make_buckets(
      params,
      {.bucket_size = config.bucket_size, .num_shards = shard.size(), .split_units = stage >= 2});
  const BucketValuesOptions values{
      .device = device, .shard = shard, .overlap = config.overlap_param_gather};
  values_ =
      stage >= 3 ? make_sharded_values(buckets_, values) : make_resident_values(buckets_, values);
  const at::ScalarType dtype = params.size() == 0 ? at::kFloat : params.begin()->dtype();
  const at::ScalarType acc = nn::acc_dtype(dtype);
  const BucketGradientsOptions gradients{
      .reducer = {.shard = shard,
                  .replicas = replicas_,
                  .dtype = acc,
                  .wire = config.grad_reduce_in_fp32 ? acc : dtype,
                  .device = device},
      .overlap = config.overlap_grad_reduce};
  gradients_ = stage >= 2 ? make_sharded_gradients(buckets_, gradients)
                          : make_resident_gradients(buckets_, gradients);
  for (size_t b = 0; b < buckets_.size(); ++b) {
    shards_.push_back({values_->owned(b), gradients_->owned(b),
                       pieces_of(buckets_[b], shard.rank(), shard.size())});
  }
  for (size_t b = 0; b < buckets_.size(); ++b) {
    const std::string& axis = buckets_[b].shared_axis;
    if (!axis.empty()) shared_sums_.push_back({axis, groups.get(axis), shards_[b].gradients});
  }
  std::ranges::sort(shared_sums_, {}, &SharedSum::axis);
  partial_sums_.emplace_back(shards_, "tp", groups);
  if (!planted("kv_group_gradients_not_summed"))
    partial_sums_.emplace_back(shards_, nn::kTpReplicaAxis, groups);
}

void DataParallel::acquire(int64_t unit, nn::Pass pass) {
  values_->acquire(unit, pass);
}

void DataParallel::release(int64_t unit, nn::Pass pass) {
  values_->release(unit);
  if (pass == nn::Pass::kBackward) gradients_->backward_done(unit);
}

void DataParallel::finish_gradients() {
  gradients_->finish();
  // Two ranks may hold several parameters and each with others. All take them in one order, so
  // that no rank waits for one that waits for it.
  for (const SharedSum& sum : shared_sums_) {
    if (planted("tied_gradients_not_summed")) continue;
    if (planted("bias_of_buckets_not_shared") &&
        sum.axis.find("relative_bias") != std::string::npos)
      continue;
    const bool last = sum.holders.rank() == sum.holders.size() - 1;
    if (last && planted("shared_gradient_misses_the_last_holder")) sum.gradients.zero_();
    const at::Tensor own = planted("shared_gradient_sum_stays_on_the_first_holder")
                               ? sum.gradients.clone()
                               : at::Tensor();
    comm::all_reduce_(sum.gradients, comm::ReduceOp::kSum, sum.holders);
    if (own.defined() && sum.holders.rank() > 0) sum.gradients.copy_(own);
  }
  for (const PartialSums& sums : partial_sums_) sums.sum();
}

double DataParallel::counted_sum_of_squares() const {
  return replicas_.rank() == 0 || planted("norm_counts_every_replica")
             ? optim::counted_sum_of_squares(shards_)
             : 0;
}

} // namespace pentatron::parallel
