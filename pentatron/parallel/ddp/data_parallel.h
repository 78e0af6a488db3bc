/// Data parallelism: ranks that run the same model on different samples, and the parameters'
/// storage.
///
/// One engine whose policies are ZeRO-0 to 3 (Rajbhandari et al. 2019, arXiv:1910.02054): what of
/// values, gradients and optimizer state a rank keeps. Every reduction is a sum, because the loss
/// is a sum over tokens whose denominator is known before the first forward pass. Families of
/// parameters are kept apart: each is split and reduced over its own group, and frozen ones have
/// values alone, which ZeRO-3 splits like others.
///
/// Collectives: every rank of dp makes the same calls in the same order; so do those of the other
/// groups for finish_gradients().
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "pentatron/comm/parallel_groups.h"
#include "pentatron/nn/param_store.h"
#include "pentatron/parallel/ddp/bucket.h"
#include "pentatron/parallel/ddp/bucket_gradients.h"
#include "pentatron/parallel/ddp/bucket_values.h"
#include "pentatron/parallel/ddp/ddp_config.h"
#include "pentatron/parallel/ddp/partial_sums.h"

namespace pentatron::parallel {

/// What DataParallel asks for of `size` ranks that hold the same parameters and have other samples,
/// to be listed for ParallelGroups: `axis` ("dp"), and its parts where instances split it. Throws
/// ConfigError if num_distributed_optimizer_instances does not divide `size`.
std::vector<comm::NeededGroup> data_parallel_groups(const std::string& axis, int size,
                                                    const DdpConfig& config);

class DataParallel final : public nn::ParamStore {
 public:
  /// `params` outlive the store; their coordinates do not name dp. Uses the groups of
  /// data_parallel_groups("dp"), or "dp-cp" if the run lists it, for dense parameters and of "edp"
  /// for those of experts, and those of the axes that a trained parameter is Partial over: "tp",
  /// nn::kTpReplicaAxis, nn::shared_axis().
  DataParallel(nn::ParamList& params, at::Device device, const DdpConfig& config,
               const comm::ParallelGroups& groups);
  DataParallel(const DataParallel&) = delete;

  /// Sets values: calls `fill` for every parameter while it has its whole value (of this rank).
  void write_values(const std::function<void(nn::Param&)>& fill);
  /// The same of what is trained; the others keep their values.
  void write_trained_values(const std::function<void(nn::Param&)>& fill);
  /// Calls `visit` for every parameter while it has its whole value. Collective over dp.
  void read_values(const std::function<void(const nn::Param&)>& visit);

  void acquire(int64_t segment, nn::Pass pass) override;
  void release(int64_t segment, nn::Pass pass) override;

  /// Gradients are zero.
  void begin_step();
  /// No further forward pass of this step will announce uses: what is ready may be reduced.
  void forwards_done();
  /// Deferred weight gradients of a microbatch have been added.
  void flush();
  /// Weight gradients come after release() and flush() follows them, so reductions wait for it:
  /// each bucket is reduced once a microbatch and not twice.
  void defer_to_flush(bool defer);
  /// Afterwards the gradients of shards() are sums over all ranks.
  void finish_gradients();

  /// What this rank owns; its optimizer updates what is trainable. Gradients are valid from
  /// finish_gradients() to begin_step().
  const std::vector<nn::Shard>& shards() const { return shards_; }
  const nn::ParamList& params() const { return *params_; }
  /// The ranks that hold the same buffers.
  const comm::Group& buffer_replicas() const { return buffer_replicas_; }
  /// optim::counted_sum_of_squares of the shards, without those of which another data-parallel rank
  /// adds the same: summed over all ranks of the run it counts every true element once.
  at::Tensor counted_sum_of_squares() const;
  /// Whether gradients that are not in that sum hold a NaN or infinity: 0-dim bool.
  at::Tensor has_nonfinite_copies() const;

  /// The optimizer has changed the values of trainable shards(). Under overlap_param_gather the
  /// others' parts are awaited in acquire().
  void publish_values();
  /// The values of any shards() have changed: they were loaded.
  void publish_all_values();
  /// All values are here that are kept on this rank.
  void wait_values();

 private:
  /// The shard of a parameter that several pipeline ranks hold.
  struct SharedSum {
    std::string axis;
    comm::Group holders;
    at::Tensor gradients;
  };

  /// The parameters of one group and type that train, or that do not.
  struct Part {
    std::vector<Bucket> buckets;
    std::unique_ptr<BucketValues> values;
    std::unique_ptr<BucketGradients> gradients; // null: frozen
  };

  std::unique_ptr<Part> make_part(const std::vector<nn::Param*>& params, at::Device device,
                                  const DdpConfig& config, const comm::ParallelGroups& groups);

  const nn::ParamList* params_;
  at::Device device_;
  std::vector<nn::Param*> int8_; // whole on every data-parallel rank
  comm::Group buffer_replicas_;
  std::vector<std::unique_ptr<Part>> parts_;
  std::vector<nn::Shard> shards_;      // by part, by bucket
  std::vector<SharedSum> shared_sums_; // by axis: in an order that all ranks have
  std::vector<PartialSums> partial_sums_;
};

} // namespace pentatron::parallel
