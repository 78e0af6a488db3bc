#include "pentatron/parallel/ddp/data_parallel.h"

#include <ATen/ATen.h>

#include <fmt/format.h>

#include "pentatron/base/error.h"
#include "pentatron/base/planted_bug.h"
#include "pentatron/comm/collectives.h"
#include "pentatron/optim/optimizer.h"

namespace pentatron::parallel {

namespace {

/// How dp is cut: `shard` ranks share the elements of a bucket, `replicas` own the same ones.
struct Sharding {
  comm::Group shard, replicas;
};

Sharding make_sharding(const comm::Group& dp, const DdpConfig& config) {
  const int64_t instances = config.num_distributed_optimizer_instances;
  if (dp.size() % instances != 0) {
    raise<ConfigError>("ddp.num_distributed_optimizer_instances={} does not divide the {} "
                       "data-parallel ranks\n  try: ddp.num_distributed_optimizer_instances={}",
                       instances, dp.size(), config::nearest_divisor(dp.size(), instances));
  }
  if (config.zero_stage == 0 || instances == dp.size()) return {.shard = {}, .replicas = dp};
  if (instances == 1) return {.shard = dp, .replicas = {}};
  const int size = dp.size() / static_cast<int>(instances);
  return {.shard = dp.split(dp.rank() / size, dp.rank(), dp.name() + "-shard"),
          .replicas = dp.split(dp.rank() % size, dp.rank(), dp.name() + "-replicas")};
}

} // namespace

DataParallel::DataParallel(nn::ParamList& params, at::Device device, const DdpConfig& config,
                           DataParallelGroups groups)
    : groups_(std::move(groups)) {
  const Sharding sharding = make_sharding(groups_.dp, config);
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
  partial_sums_.emplace_back(shards_, "tp", groups_.tp);
  if (!planted("kv_group_gradients_not_summed"))
    partial_sums_.emplace_back(shards_, nn::kTpReplicaAxis, groups_.tp_replicas);
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
  for (size_t b = 0; b < buckets_.size(); ++b) {
    if (buckets_[b].on_two_stages && !planted("tied_gradients_not_summed"))
      comm::all_reduce_(shards_[b].gradients, comm::ReduceOp::kSum, groups_.embedding);
  }
  for (const PartialSums& sums : partial_sums_) sums.sum();
}

double DataParallel::counted_sum_of_squares() const {
  return replicas_.rank() == 0 || planted("norm_counts_every_replica")
             ? optim::counted_sum_of_squares(shards_)
             : 0;
}

} // namespace pentatron::parallel
