/// The weight gradient of a dense product.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "pentatron/nn/context.h"

namespace pentatron::nn {

/// weight.main_grad += dy^T x and bias.main_grad += column sums of dy; either may be null.
///   dy [T, out], x [T, in]
class LinearWgrad final : public WgradTask {
 public:
  LinearWgrad(at::Tensor dy, at::Tensor x, Param* weight, Param* bias);
  void run() override;
  std::vector<at::Tensor> holds() const override { return {dy_, x_}; }

 private:
  at::Tensor dy_, x_;
  Param *weight_, *bias_;
};

/// The same of this rank's rows of x, which run() gathers.
///   dy [T, out], x [T / ranks, in]
class GatheredWgrad final : public WgradTask {
 public:
  GatheredWgrad(at::Tensor dy, at::Tensor x, Param* weight, Param* bias, comm::Group group);
  void run() override;
  std::vector<at::Tensor> holds() const override { return {dy_, x_}; }

 private:
  at::Tensor dy_, x_;
  Param *weight_, *bias_;
  comm::Group group_;
};

} // namespace pentatron::nn
