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

/// The axes of ParallelGroups whose ranks hold addends.
const char* axis_of(nn::ReductionGroup group, const comm::ParallelGroups& groups) {
  if (group == nn::ReductionGroup::kExpert && !planted("experts_summed_over_data_parallel_ranks"))
    return "edp";
  return groups.lists("dp-cp") ? "dp-cp" : "dp";
}

Sharding make_sharding(const comm::ParallelGroups& groups, const std::string& axis,
                       const DdpConfig& config) {
  const comm::Group& whole = groups.get(axis);
  const int64_t instances = config.num_distributed_optimizer_instances;
  if (config.zero_stage == 0 || instances == whole.size()) return {.shard = {}, .replicas = whole};
  if (instances == 1) return {.shard = whole, .replicas = {}};
  return {.shard = groups.get(axis + "-shard"), .replicas = groups.get(axis + "-replicas")};
}

/// Whether other ranks get the codes of a parameter in place of its values.
bool sends_codes(const nn::Param& param, const DdpConfig& config) {
  return config.fp8_param_gather && param.low_precision &&
         nn::Fp8Weight::supports(param.low_precision->weight);
}

/// The ranks that hold the other parts of a bucket's parameters, where the optimizer needs them.
comm::Group tensor_ranks(const Bucket& bucket, const comm::ParallelGroups& groups) {
  const nn::Param& param = *bucket.slots.front().param;
  if (!param.whole) return {};
  return groups.get(param.group == nn::ReductionGroup::kExpert ? "etp" : "tp");
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
  constexpr auto kUse = comm::GroupUse::kBackground;
  std::vector<comm::NeededGroup> needed = {comm::NeededGroup::of_axes(axis, kUse)};
  if (config.zero_stage == 0 || instances == size || instances == 1) return needed;
  const int each = size / instances;
  std::vector<std::vector<int>> shards(static_cast<size_t>(instances)),
      replicas(static_cast<size_t>(each));
  for (int rank = 0; rank < size; ++rank) {
    shards[static_cast<size_t>(rank / each)].push_back(rank);
    replicas[static_cast<size_t>(rank % each)].push_back(rank);
  }
  needed.push_back({axis + "-shard", axis, std::move(shards), kUse});
  needed.push_back({axis + "-replicas", axis, std::move(replicas), kUse});
  return needed;
}

std::unique_ptr<DataParallel::Part> DataParallel::make_part(const std::vector<nn::Param*>& params,
                                                            at::Device device,
                                                            const DdpConfig& config,
                                                            const comm::ParallelGroups& groups) {
  const nn::ParamFamily family = params.front()->family();
  const Sharding sharding = make_sharding(groups, axis_of(family.group, groups), config);
  const comm::Group& shard = sharding.shard;
  const int64_t stage = shard.size() == 1 ? 0 : config.zero_stage; // nothing to split
  auto part = std::make_unique<Part>();
  part->buckets = make_buckets(params, {.bucket_size = config.bucket_size,
                                        .num_shards = shard.size(),
                                        .split_segments = stage >= 2});
  const BucketValuesOptions values{
      .device = device, .shard = shard, .overlap = config.overlap_param_gather};
  if (stage > 0 && sends_codes(*params.front(), config))
    part->values = make_fp8_values(part->buckets, values, /*sharded=*/stage >= 3);
  else
    part->values = stage >= 3 ? make_sharded_values(part->buckets, values)
                              : make_resident_values(part->buckets, values);
  if (family.trainable) {
    const at::ScalarType acc = nn::acc_dtype(family.dtype);
    const BucketGradientsOptions gradients{
        .reducer = {.shard = shard,
                    .replicas = sharding.replicas,
                    .dtype = acc,
                    .wire = config.grad_reduce_in_fp32 ? acc : family.dtype,
                    .device = device},
        .overlap = config.overlap_grad_reduce};
    part->gradients = stage >= 2 ? make_sharded_gradients(part->buckets, gradients)
                                 : make_resident_gradients(part->buckets, gradients);
  }
  for (size_t b = 0; b < part->buckets.size(); ++b) {
    shards_.push_back({.values = part->values->owned(b),
                       .gradients = part->gradients ? part->gradients->owned(b) : at::Tensor(),
                       .pieces = pieces_of(part->buckets[b], shard.rank()),
                       .replicas = sharding.replicas,
                       .tensor = tensor_ranks(part->buckets[b], groups)});
    const std::string& axis = part->buckets[b].shared_axis;
    if (!axis.empty()) shared_sums_.push_back({axis, groups.get(axis), shards_.back().gradients});
  }
  return part;
}

DataParallel::DataParallel(nn::ParamList& params, at::Device device, const DdpConfig& config,
                           const comm::ParallelGroups& groups)
    : params_(&params), device_(device),
      buffer_replicas_(groups.get(axis_of(nn::ReductionGroup::kDense, groups))) {
  std::vector<std::vector<nn::Param*>> parts; // what stays apart even as storage
  for (nn::Param& param : params) {
    if (param.in_int8) {
      int8_.push_back(&param);
      continue;
    }
    const auto fits = [&](const std::vector<nn::Param*>& part) {
      const nn::Param& one = *part.front();
      return one.group == param.group && one.dtype() == param.dtype() &&
             one.trainable == param.trainable &&
             sends_codes(one, config) == sends_codes(param, config);
    };
    auto found = std::ranges::find_if(parts, fits);
    if (found == parts.end()) found = parts.emplace(parts.end());
    found->push_back(&param);
  }
  for (const std::vector<nn::Param*>& part : parts)
    parts_.push_back(make_part(part, device, config, groups));
  std::ranges::sort(shared_sums_, {}, &SharedSum::axis);
  partial_sums_.emplace_back(shards_, "tp", groups);
  partial_sums_.emplace_back(shards_, "etp", groups);
  if (!planted("kv_group_gradients_not_summed"))
    partial_sums_.emplace_back(shards_, nn::kTpReplicaAxis, groups);
}

void DataParallel::write_values(const std::function<void(nn::Param&)>& fill) {
  for (const auto& part : parts_) part->values->write(fill);
  for (nn::Param* const param : int8_) param->write_int8(device_, fill);
}

void DataParallel::write_trained_values(const std::function<void(nn::Param&)>& fill) {
  for (const auto& part : parts_)
    if (part->gradients) part->values->write(fill);
}

void DataParallel::read_values(const std::function<void(const nn::Param&)>& visit) {
  for (const auto& part : parts_) part->values->read(visit);
  for (nn::Param* const param : int8_) param->read_int8(visit);
}

void DataParallel::acquire(int64_t segment, nn::Pass pass) {
  for (const auto& part : parts_) part->values->acquire(segment, pass);
}

void DataParallel::release(int64_t segment, nn::Pass pass) {
  for (const auto& part : parts_) {
    part->values->release(segment);
    if (part->gradients && pass == nn::Pass::kBackward) part->gradients->backward_done(segment);
  }
}

void DataParallel::begin_step() {
  for (const auto& part : parts_)
    if (part->gradients) part->gradients->begin_step();
}

void DataParallel::forwards_done() {
  for (const auto& part : parts_)
    if (part->gradients) part->gradients->forwards_done();
}

void DataParallel::flush() {
  for (const auto& part : parts_)
    if (part->gradients) part->gradients->flush();
}

void DataParallel::defer_to_flush(bool defer) {
  for (const auto& part : parts_)
    if (part->gradients) part->gradients->defer_to_flush(defer);
}

void DataParallel::finish_gradients() {
  for (const auto& part : parts_)
    if (part->gradients) part->gradients->finish();
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

at::Tensor DataParallel::counted_sum_of_squares() const {
  std::vector<nn::Shard> counted;
  for (const nn::Shard& shard : shards_)
    if (shard.replicas.rank() == 0 || planted("norm_counts_every_replica"))
      counted.push_back(shard);
  return optim::counted_sum_of_squares(counted, device_);
}

at::Tensor DataParallel::has_nonfinite_copies() const {
  std::vector<nn::Shard> counted, others;
  for (const nn::Shard& shard : shards_)
    (shard.replicas.rank() == 0 ? counted : others).push_back(shard);
  return optim::has_nonfinite_copies(counted, /*all=*/false, device_)
      .logical_or(optim::has_nonfinite_copies(others, /*all=*/true, device_));
}

void DataParallel::publish_values() {
  for (const auto& part : parts_)
    if (part->gradients) part->values->publish();
}

void DataParallel::publish_all_values() {
  for (const auto& part : parts_) part->values->publish();
}

void DataParallel::wait_values() {
  for (const auto& part : parts_) part->values->wait();
}

} // namespace pentatron::parallel
