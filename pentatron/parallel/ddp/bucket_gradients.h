/// Where the gradients of buckets live until the step's sums are complete: whole on every rank
/// (ZeRO-0 and 1), or as sums in this rank's shards with scratch for what one microbatch adds
/// (ZeRO-2 and 3).
#pragma once

#include <memory>
#include <vector>

#include "pentatron/parallel/ddp/bucket.h"
#include "pentatron/parallel/ddp/reduction.h"

namespace pentatron::parallel {

class BucketGradients {
 public:
  virtual ~BucketGradients() = default;

  /// This rank's shard of a bucket.
  virtual at::Tensor owned(size_t bucket) const = 0;
  virtual void begin_step() = 0;
  virtual void forwards_done() = 0;
  /// Backward of a segment has run for a microbatch.
  virtual void backward_done(int64_t segment) = 0;
  /// What backward_done() would reduce waits for flush().
  virtual void defer_to_flush(bool defer) = 0;
  virtual void flush() = 0;
  /// From here on owned() are sums over the data-parallel ranks.
  virtual void finish() = 0;
};

struct BucketGradientsOptions {
  Reducer::Options reducer;
  bool overlap = false; ///< reduce while backward still runs
};

/// `buckets` outlives them.
std::unique_ptr<BucketGradients> make_resident_gradients(const std::vector<Bucket>& buckets,
                                                         const BucketGradientsOptions& options);
std::unique_ptr<BucketGradients> make_sharded_gradients(const std::vector<Bucket>& buckets,
                                                        const BucketGradientsOptions& options);

} // namespace pentatron::parallel
