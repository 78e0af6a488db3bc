/// Buckets: parameters that are reduced and gathered together, as one flat vector. Pure arithmetic,
/// no communication.
///
/// Every parameter begins at a multiple of 64 elements; the gaps are zero and stay zero. A bucket
/// is cut into contiguous shards: equal ones without regard to parameters, or, where the optimizer
/// needs them whole, so that every parameter lies in one shard; such shards differ in length, and
/// the buckets of a rank together have about as much on each. Source: Megatron-LM's distributed
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
  int64_t length = 0;            ///< a multiple of 64
  std::vector<int64_t> shards;   ///< their lengths, multiples of 64, of `length` together
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

/// The buckets' lengths, and those of shard `index` of each.
std::vector<int64_t> lengths_of(const std::vector<Bucket>& buckets);
std::vector<int64_t> shard_lengths_of(const std::vector<Bucket>& buckets, int64_t index);

/// Shard `index` of a vector of the bucket's length.
at::Tensor shard_of(const at::Tensor& flat, const Bucket& bucket, int64_t index);
/// What that shard holds.
std::vector<nn::Piece> pieces_of(const Bucket& bucket, int64_t index);

/// Gives whole items, whose sizes are named, to the shards: in descending order, each to the shard
/// that has least of `filled`, which is added to. Returns the shard of each.
std::vector<int64_t> share_out(const std::vector<int64_t>& sizes, std::vector<int64_t>& filled);

/// The parameter's part of a vector of the bucket's length, in its shape.
at::Tensor view_of(const at::Tensor& flat, const Bucket::Slot& slot);

} // namespace pentatron::parallel
