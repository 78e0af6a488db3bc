/// The MLP of a transformer layer: up projection (or gate | up), activation, down projection.
///
/// Shapes, T = tokens, h = hidden, f = ffn, t = tp size: forward x [T, h] -> [T, h]; inside, [T, f
/// / t] (twice if gated). Collectives: those of ColumnParallelLinear and RowParallelLinear.
/// Source: Shazeer 2020 (arXiv:2002.05202) for gated units.
#pragma once

#include "pentatron/kernels/activation/activation.h"
#include "pentatron/nn/cost.h"
#include "pentatron/nn/ops/ops.h"
#include "pentatron/parallel/tensor/linear.h"

namespace pentatron::layers {

struct MlpOptions {
  int64_t hidden = 0;
  int64_t ffn = 0;
  kernels::Activation activation = kernels::Activation::kGelu;
  bool gated = false;
  kernels::GateOptions gate = {}; ///< of a gated one
  bool bias = false;
  double dropout = 0; ///< of the activation's output, in training
  uint32_t dropout_site = 0;
  double init_std = 0.02;
  double proj_init_std = 0.02;
};

class Mlp {
 public:
  Mlp(const nn::Scope& scope, const MlpOptions& options, parallel::TensorParallel tp);
  at::Tensor forward(const at::Tensor& x, const nn::ForwardContext& ctx) const;
  static nn::Cost cost(const MlpOptions& options, const nn::LayerShape& shape);

 private:
  MlpOptions options_;
  nn::DropoutSite dropout_;
  parallel::ColumnParallelLinear fc1_;
  parallel::RowParallelLinear fc2_;
};

} // namespace pentatron::layers
