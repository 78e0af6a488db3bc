/// Parameters and a context for tests of operators and layers, and derivatives to compare with.
#pragma once

#include "pentatron/nn/context.h"
#include "tests/support/tensors.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace pentatron::test {

/// Parameters that have values and gradients without a store.
class Params {
 public:
  nn::Param& add(const std::string& name, const at::Tensor& value) {
    return add({.name = name, .shape = value.sizes().vec()}, {}, value);
  }
  /// `global` has the true shape; the parameter holds its part of a rank at `where`.
  nn::Param& add(const nn::ShardSpec& spec, const nn::Coordinates& where,
                 const at::Tensor& global) {
    nn::Param& param = list_.add(spec, nn::Init::constant(0), global.scalar_type(), where);
    param.set_value(at::zeros(param.shape(), global.options()));
    param.set_main_grad(
        at::zeros(param.shape(), global.options().dtype(nn::acc_dtype(global.scalar_type()))));
    nn::load_global(param, global);
    return param;
  }

 private:
  nn::ParamList list_;
};

/// What one forward and backward pass needs.
struct Pass {
  explicit Pass(nn::SequenceLayout sequences, bool deferred = false)
      : batch{.fields = {}, .layouts = {std::move(sequences)}}, wgrad(deferred) {
    ctx.layout = &layout;
    ctx.batch = &batch;
    ctx.results = &results;
    ctx.wgrad = &wgrad;
    ctx.state = &state;
    ctx.differentiated = true;
  }
  /// One sample of `tokens`.
  explicit Pass(int64_t tokens, bool deferred = false)
      : Pass(nn::SequenceLayout::dense(1, tokens, {0}, at::kCPU), deferred) {}
  Pass(const Pass&) = delete;

  nn::Microbatch batch;
  nn::SequenceLayout& layout = batch.layouts[0];
  nn::WgradQueue wgrad;
  nn::StepState state;
  nn::PassResults results;
  nn::ForwardContext ctx;
};

struct Derivatives {
  at::Tensor y;
  std::vector<at::Tensor> grads; ///< of the inputs, undefined where none arrived
};

/// y = f(inputs), and the gradients that backward from `dy` brings to the inputs. `f` gets copies.
inline Derivatives differentiate(const std::function<at::Tensor(const std::vector<at::Tensor>&)>& f,
                                 const std::vector<at::Tensor>& inputs, const at::Tensor& dy) {
  std::vector<at::Tensor> leaves;
  for (const at::Tensor& input : inputs)
    leaves.push_back(input.detach().clone().requires_grad_(true));
  const at::Tensor y = f(leaves);
  Derivatives result{y.detach().clone(), {}};
  y.backward(dy.clone());
  for (const at::Tensor& leaf : leaves) result.grads.push_back(leaf.grad());
  return result;
}

/// |a - b| / |b| in the 2-norm.
inline double relative_error(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor expected = b.detach().to(at::kDouble);
  return (a.detach().to(at::kDouble) - expected).norm().item<double>() /
         std::max(expected.norm().item<double>(), 1e-300);
}

inline bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  const auto bytes = [](const at::Tensor& x) {
    return x.detach().contiguous().flatten().view(at::kByte);
  };
  return a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type() &&
         at::equal(bytes(a), bytes(b));
}

} // namespace pentatron::test
