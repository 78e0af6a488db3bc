/// Where the values of buckets live: whole on every rank (ZeRO-0 to 2), or only this rank's shards,
/// gathered for the segments that are in use (ZeRO-3).
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "pentatron/comm/group.h"
#include "pentatron/nn/param_store.h"
#include "pentatron/parallel/ddp/bucket.h"

namespace pentatron::parallel {

class BucketValues {
 public:
  virtual ~BucketValues() = default;

  /// This rank's shard of a bucket.
  virtual at::Tensor owned(size_t bucket) const = 0;
  virtual void acquire(int64_t segment, nn::Pass pass) = 0;
  virtual void release(int64_t segment) = 0;
  /// Sends the owned shards to the other ranks after they have changed. Collective.
  virtual void publish() = 0;
  /// Waits for the transfers of publish().
  virtual void wait() = 0;
  /// Lends every parameter its whole value; what `fill` writes is kept.
  virtual void write(const std::function<void(nn::Param&)>& fill) = 0;
  /// Lends every parameter its whole value for reading. Collective.
  virtual void read(const std::function<void(const nn::Param&)>& visit) = 0;
};

struct BucketValuesOptions {
  at::Device device = at::kCPU;
  comm::Group shard;    ///< the ranks that hold a bucket together
  bool overlap = false; ///< start gathers ahead of their use
};

/// `buckets` outlives them.
std::unique_ptr<BucketValues> make_resident_values(const std::vector<Bucket>& buckets,
                                                   const BucketValuesOptions& options);
std::unique_ptr<BucketValues> make_sharded_values(const std::vector<Bucket>& buckets,
                                                  const BucketValuesOptions& options);
/// Of weights in low precision (nn/fp8_weight.h): a rank keeps the values of its shards; segments
/// get codes, which are whole on every rank (ZeRO-1 and 2), or with `sharded` gathered as in
/// ZeRO-3.
std::unique_ptr<BucketValues> make_fp8_values(const std::vector<Bucket>& buckets,
                                              const BucketValuesOptions& options, bool sharded);

} // namespace pentatron::parallel
