/// RMSNorm of queries or keys: of each head by itself (Dehghani et al. 2023, arXiv:2302.05442), or
/// of all heads of a token together (OLMo 2, arXiv:2501.00656).
#pragma once

#include <string>

#include <ATen/core/Tensor.h>

#include "pentatron/nn/context.h"
#include "pentatron/nn/module.h"
#include "pentatron/parallel/tensor/tensor_parallel.h"

namespace pentatron::layers {

enum class QkNorm : uint8_t { kNone, kHead, kProjection };

struct HeadsNormOptions {
  QkNorm kind = QkNorm::kHead;
  int64_t heads = 0; ///< of all tensor ranks
  int64_t head_size = 0;
  bool in_groups = false; ///< neighbouring ranks may share a head (keys)
  double eps = 1e-5;
  bool zero_centered = false;
};

/// Collectives with kProjection: one all-reduce of a number for each token over the tensor ranks in
/// forward and in backward.
class HeadsNorm {
 public:
  HeadsNorm(const nn::Scope& scope, const std::string& name, const HeadsNormOptions& options,
            const parallel::TensorParallel& tp);

  /// Announces one use of the weight.
  void use(const nn::ForwardContext& ctx) const { ctx.use(weight_); }
  /// x [T, heads of this rank, d], tokens strided -> contiguous. `rstd` is for backward.
  at::Tensor forward(const at::Tensor& x, at::Tensor& rstd) const;
  /// Writes the gradient of x into `dx` (strided as x) and accumulates that of the weight.
  void backward(const at::Tensor& dx, const at::Tensor& dy, const at::Tensor& x,
                const at::Tensor& rstd) const;

 private:
  /// All heads are here: one kernel call does it.
  bool is_local() const { return options_.kind == QkNorm::kHead || group_.size() == 1; }
  /// [heads of this rank, d] in the accumulate type, what x is multiplied by.
  at::Tensor scale(at::ScalarType type) const;

  HeadsNormOptions options_;
  comm::Group group_;
  int64_t copies_ = 1; ///< ranks that hold the same head
  nn::Param* weight_;
};

} // namespace pentatron::layers
