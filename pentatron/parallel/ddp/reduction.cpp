#include "pentatron/parallel/ddp/reduction.h"

#include <ATen/ATen.h>

#include <deque>

#include "pentatron/base/planted_bug.h"
#include "pentatron/comm/collectives.h"

namespace pentatron::parallel {

Reducer::Reducer(const Options& options)
    : options_(options),
      copies_(options.wire != options.dtype && options.shard.size() * options.replicas.size() > 1),
      wires_(at::TensorOptions(options.wire).device(options.device),
             nn::MemoryCategory::kGradients) {}

at::Tensor Reducer::to_wire(const at::Tensor& gradients) {
  return copies_ ? wires_.take(gradients.numel()).copy_(gradients) : gradients;
}

Reducer::Reduction Reducer::start(const at::Tensor& gradients, const Bucket& bucket) {
  const comm::Group& shard = options_.shard;
  Reduction reduction{&bucket, gradients, to_wire(gradients), {}};
  const at::Tensor& x = reduction.wire;
  reduction.work = shard.size() == 1
                       ? comm::all_reduce_start_(x, comm::ReduceOp::kSum, options_.replicas)
                       : comm::reduce_scatter_rows_into(shard_of(x, bucket, shard.rank()), x,
                                                        bucket.shards, shard);
  return reduction;
}

at::Tensor Reducer::finish(Reduction& reduction) {
  const comm::Group& shard = options_.shard;
  reduction.work.wait();
  const at::Tensor owned = shard_of(reduction.gradients, *reduction.bucket, shard.rank());
  if (copies_) {
    owned.copy_(shard_of(reduction.wire, *reduction.bucket, shard.rank()));
    wires_.give_back(reduction.wire);
  }
  if (planted("average_for_a_sum")) owned.div_(shard.size() * options_.replicas.size());
  return owned;
}

void Reducer::sum_over_replicas(const std::vector<at::Tensor>& owned) {
  const comm::Group& replicas = options_.replicas;
  if (options_.shard.size() == 1 || replicas.size() == 1 || planted("replicas_not_summed")) return;
  struct UnderWay {
    at::Tensor gradients, wire;
    comm::Work work;
  };
  std::deque<UnderWay> under_way;
  const auto finish_oldest = [&] {
    UnderWay& one = under_way.front();
    one.work.wait();
    if (copies_) {
      one.gradients.copy_(one.wire);
      wires_.give_back(one.wire);
    }
    under_way.pop_front();
  };
  for (const at::Tensor& gradients : owned) {
    if (copies_ && under_way.size() == kCopiesUnderWay) finish_oldest();
    const at::Tensor wire = to_wire(gradients);
    under_way.push_back(
        {gradients, wire, comm::all_reduce_start_(wire, comm::ReduceOp::kSum, replicas)});
  }
  while (!under_way.empty()) finish_oldest();
}

} // namespace pentatron::parallel
