/// Linear layers whose weight is split over the tp axis.
///
/// Source: Shoeybi et al. 2019 (arXiv:1909.08053) sec. 3.
#pragma once

#include <vector>

#include "pentatron/comm/group.h"
#include "pentatron/nn/context.h"
#include "pentatron/nn/module.h"

namespace pentatron::parallel {

/// y = x W^T + b with W split by rows (output features).
///
/// Shapes, T = tokens, t = tp size: weight [out / t, in]; forward x [T, in] -> [T, out / t]
/// Collectives: forward none; backward all-reduce of dx.
/// Throws ConfigError if a fused part does not divide by t.
class ColumnParallelLinear {
 public:
  struct Options {
    int64_t in = 0;
    std::vector<nn::FusedPart> parts; ///< of the output features; their sizes add up to out
    bool bias = false;
    double init_std = 0.02;
  };
  ColumnParallelLinear(const nn::Scope& scope, const Options& options, comm::Group tp);
  at::Tensor forward(const at::Tensor& x, const nn::ForwardContext& ctx) const;

 private:
  comm::Group tp_;
  nn::Param* weight_;
  nn::Param* bias_ = nullptr;
};

/// y = x W^T + b with W split by columns (input features); the bias is added once, after the sum.
///
/// Shapes: weight [out, in / t]; forward x [T, in / t] -> [T, out]
/// Collectives: forward all-reduce of y; backward none.
/// Throws ConfigError if `in_units` does not divide by t.
class RowParallelLinear {
 public:
  struct Options {
    int64_t in = 0;
    int64_t out = 0;
    bool bias = false;
    double init_std = 0.02;
  };
  RowParallelLinear(const nn::Scope& scope, const Options& options, comm::Group tp);
  at::Tensor forward(const at::Tensor& x, const nn::ForwardContext& ctx) const;

 private:
  comm::Group tp_;
  nn::Param* weight_;
  nn::Param* bias_ = nullptr;
};

} // namespace pentatron::parallel
