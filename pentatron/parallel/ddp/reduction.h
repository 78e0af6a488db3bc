/// The sum of a bucket's gradients over data-parallel ranks, started and awaited.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "pentatron/comm/group.h"
#include "pentatron/comm/work.h"
#include "pentatron/parallel/ddp/bucket.h"
#include "pentatron/parallel/ddp/scratch_pool.h"

namespace pentatron::parallel {

/// Collectives: with one shard an all-reduce over `replicas`; else a reduce-scatter over `shard`,
/// and sum_over_replicas for the rest.
class Reducer {
 public:
  struct Options {
    comm::Group shard;                 ///< the ranks that share the elements of a bucket
    comm::Group replicas;              ///< the ranks that own the same elements
    at::ScalarType dtype = at::kFloat; ///< of gradients
    at::ScalarType wire = at::kFloat;  ///< sent in this type; sums are in fp32 or wider
    at::Device device = at::kCPU;
  };
  explicit Reducer(const Options& options);

  struct Reduction {
    const Bucket* bucket;
    at::Tensor gradients; ///< [bucket], not to be touched until finish()
    at::Tensor wire;
    comm::Work work;
  };
  [[nodiscard]] Reduction start(const at::Tensor& gradients, const Bucket& bucket);
  /// Waits. This rank's shard of the gradients, now sums; the other elements are undefined.
  at::Tensor finish(Reduction& reduction);

  /// Completes the sums of owned shards where start() could not.
  void sum_over_replicas(const std::vector<at::Tensor>& owned);

  const comm::Group& shard() const { return options_.shard; }
  /// Whether a reduction in progress holds its own memory; then callers keep at most
  /// kCopiesUnderWay in progress.
  bool copies() const { return copies_; }
  static constexpr size_t kCopiesUnderWay = 2;

 private:
  at::Tensor to_wire(const at::Tensor& gradients);

  Options options_;
  bool copies_;
  ScratchPool wires_;
};

} // namespace pentatron::parallel
