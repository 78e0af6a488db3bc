/// Linear layers whose weight is split over the tp axis.
///
/// Source: Shoeybi et al. 2019 (arXiv:1909.08053) sec. 3; Korthikanti et al. 2022
/// (arXiv:2205.05198) for sequence parallel.
#pragma once

#include <memory>
#include <vector>

#include "pentatron/nn/context.h"
#include "pentatron/nn/module.h"
#include "pentatron/parallel/tensor/tensor_parallel.h"

namespace pentatron::parallel {

class LinearAdapter;
/// By variant; null: it has no adapter at this weight.
using LinearVariants = std::vector<std::shared_ptr<const LinearAdapter>>;

/// y = x W^T + b with W split by rows (output features).
///
/// Shapes, T = tokens, t = tp size: weight [out / t, in]; forward x [T, in] -> [T, out / t]; under
/// sequence parallel x is [T / t, in].
/// Collectives: forward none; backward all-reduce of dx, overlapped with the weight gradient.
/// Sequence parallel: forward all-gather of x; backward all-gather of x, overlapped with the
/// product for dx, and reduce-scatter of dx, overlapped with the weight gradient.
/// Throws ConfigError if a fused part does not divide by t (nor, held in groups, divide t).
class ColumnParallelLinear {
 public:
  struct Options {
    int64_t in = 0;
    std::vector<nn::FusedPart> parts; ///< of the output features; their sizes add up to out
    bool bias = false;
    double init_std = 0.02;
  };
  ColumnParallelLinear(const nn::Scope& scope, const Options& options, TensorParallel tp);
  at::Tensor forward(const at::Tensor& x, const nn::ForwardContext& ctx) const;
  /// For products of another form: the weight, and the rank's values of it that rows of a variant
  /// (0: none) multiply with.
  nn::Param& weight() const { return *weight_; }
  at::Tensor weight_of(int64_t variant) const;
  /// Whether it trains an adapter, which weight() lacks and weight_of(0) has.
  bool adapted() const { return adapter_ != nullptr; }

 private:
  at::Tensor without_variants(const at::Tensor& x, const nn::ForwardContext& ctx) const;

  TensorParallel tp_;
  nn::Param* weight_;
  nn::Param* bias_ = nullptr;
  std::shared_ptr<const LinearAdapter> adapter_; ///< null: none
  LinearVariants variants_;
};

/// y = x W^T + b with W split by columns (input features); the bias is added once, after the sum.
///
/// Shapes: weight [out, in / t]; forward x [T, in / t] -> [T, out], under sequence parallel
/// [T / t, out].
/// Collectives: forward all-reduce of y; backward none. Sequence parallel: forward reduce-scatter
/// of y, backward all-gather of dy.
/// Throws ConfigError if `in` does not divide by t.
class RowParallelLinear {
 public:
  struct Options {
    int64_t in = 0;
    int64_t out = 0;
    bool bias = false;
    double init_std = 0.02;
  };
  RowParallelLinear(const nn::Scope& scope, const Options& options, TensorParallel tp);
  at::Tensor forward(const at::Tensor& x, const nn::ForwardContext& ctx) const;

 private:
  TensorParallel tp_;
  nn::Param* weight_;
  nn::Param* bias_ = nullptr;
  std::shared_ptr<const LinearAdapter> adapter_; ///< null: none
  LinearVariants variants_;
};

/// Where a parameter that every rank applies to its own tokens lies: under sequence parallel the
/// ranks hold addends of its gradient.
std::map<std::string, nn::Placement> token_wise(const TensorParallel& tp);

} // namespace pentatron::parallel
