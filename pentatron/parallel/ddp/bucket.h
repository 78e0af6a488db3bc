/// Buckets: parameters that are reduced and gathered together, as one flat vector. Pure arithmetic,
/// no communication.
///
/// Every parameter begins at a multiple of 64 elements; the gaps are zero and stay zero. A bucket
/// is cut into equal contiguous shards: without regard to parameters, or, where the optimizer needs
/// them whole, so that every parameter lies in one shard. Source: Megatron-LM's distributed
/// optimizer; Rajbhandari et al. 2019 (arXiv:1910.02054).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "pentatron/nn/param_store.h"

namespace pentatron::parallel {

struct Bucket {
  struct Slot {
    nn::Param* param = nullptr;
    int64_t begin = 0; ///< in the bucket, in elements
  };
  std::vector<Slot> slots;       ///< ascending
  int64_t length = 0;            ///< a multiple of 64 times the number of shards
  std::vector<int64_t> segments; ///< whose passes read it, ascending
  /// Of one parameter that several pipeline ranks hold and train: its axis of copies. All of them
  /// have the same bucket.
  std::string shared_axis;
};

struct BucketOptions {
  int64_t bucket_size = 0; ///< a bucket is closed when it has as many elements
  int64_t num_shards = 1;
  bool split_segments = false; ///< parameters of different segments do not share a bucket
};

/// Every parameter in one bucket, the last one first: its gradient is ready first. A bucket holds
/// parameters of one family.
std::vector<Bucket> make_buckets(const std::vector<nn::Param*>& params,
                                 const BucketOptions& options);

/// A vector with room for 1 / num_shards of every bucket, cut into one part for each.
std::vector<at::Tensor> cut_by_bucket(const at::Tensor& flat, const std::vector<Bucket>& buckets,
                                      int64_t num_shards);
/// The elements of that vector.
int64_t flat_size(const std::vector<Bucket>& buckets, int64_t num_shards);

/// Shard `index` of `num_shards` of a vector of the bucket's length.
at::Tensor shard_of(const at::Tensor& flat, int64_t index, int64_t num_shards);
/// What that shard holds.
std::vector<nn::Piece> pieces_of(const Bucket& bucket, int64_t index, int64_t num_shards);

/// The parameter's part of a vector of the bucket's length, in its shape.
at::Tensor view_of(const at::Tensor& flat, const Bucket::Slot& slot);

} // namespace pentatron::parallel
