#include "pentatron/nn/ops/wgrad.h"

#include <utility>

#include <ATen/ATen.h>

#include "pentatron/base/planted_bug.h"
#include "pentatron/comm/collectives.h"
#include "pentatron/nn/ops/matmul.h"

namespace pentatron::nn {

LinearWgrad::LinearWgrad(at::Tensor dy, at::Tensor x, Param* weight, Param* bias)
    : dy_(std::move(dy)), x_(std::move(x)), weight_(weight), bias_(bias) {}

void LinearWgrad::run() {
  if (weight_ != nullptr) {
    add_matmul_tn(*weight_, dy_, x_);
    weight_->accumulated();
  }
  if (bias_ != nullptr) {
    add_column_sums(bias_->main_grad(), dy_);
    bias_->accumulated();
  }
}

GatheredWgrad::GatheredWgrad(at::Tensor dy, at::Tensor x, Param* weight, Param* bias,
                             comm::Group group)
    : dy_(std::move(dy)), x_(std::move(x)), weight_(weight), bias_(bias), group_(std::move(group)) {
}

void GatheredWgrad::run() {
  at::Tensor all;
  if (weight_ != nullptr) {
    all = planted("deferred_gradient_of_own_tokens") ? x_.repeat({group_.size(), 1})
                                                     : comm::all_gather(x_, 0, group_);
  }
  LinearWgrad(dy_, all, weight_, bias_).run();
}

} // namespace pentatron::nn
