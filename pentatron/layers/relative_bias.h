/// A learned bias of attention scores by the distance of query and key, in buckets whose width
/// grows with the distance. Several layers may share one; each counts as a separate use of the
/// parameter.
///
/// Parameter `weight` [buckets, n], split over the tp axis by heads (n / t columns).
/// Throws ConfigError if t does not divide n.
/// Source: Raffel et al. 2020 (arXiv:1910.10683) sec. 2.1; the buckets are those of Hugging Face's
/// T5 to the bit.
#pragma once

#include <memory>

#include <ATen/core/Tensor.h>

#include "pentatron/nn/context.h"
#include "pentatron/nn/module.h"
#include "pentatron/parallel/tensor/tensor_parallel.h"

namespace pentatron::layers {

struct RelativeBiasOptions {
  int64_t heads = 0; ///< of all tensor ranks
  int64_t buckets = 32;
  int64_t max_distance = 128; ///< all longer ones are in the last bucket
  bool bidirectional = true; ///< half of the buckets are for keys ahead; else these are in bucket 0
  double init_std = 0.02;
};

class RelativeBias {
 public:
  /// Registers `scope`.weight.
  RelativeBias(const nn::Scope& scope, const RelativeBiasOptions& options,
               const parallel::TensorParallel& tp);
  /// Over a parameter with spec(), which layers on several pipeline ranks may share.
  RelativeBias(nn::Param& weight, const RelativeBiasOptions& options);
  static nn::ShardSpec spec(const RelativeBiasOptions& options);

  /// [n / t, 2 span - 1] in the accumulate type, as core_attention() takes it: for distances below
  /// `span`. One use of the parameter.
  at::Tensor table(int64_t span, const nn::ForwardContext& ctx) const;

  /// The bucket of each column of a table: int64 [2 span - 1].
  static at::Tensor bucket_of_columns(int64_t span, const RelativeBiasOptions& options,
                                      at::Device device);

 private:
  RelativeBiasOptions options_;
  nn::Param* weight_;
};

} // namespace pentatron::layers
