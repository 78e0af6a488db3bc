/// Registers the derivative of an operator of pentatron with autograd: a closure on the tape.
///
/// Every operator computes its outputs below autograd and then records one closure, and the tensors
/// that it keeps for it. Parameters are not autograd inputs: the closure holds Param handles and
/// calls accumulate() on them, so `.grad` is never touched and an operator with parameters is
/// recorded even if no input needs a gradient.
#pragma once

#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "pentatron/nn/saved.h"

namespace pentatron::nn {

/// From the gradients of the outputs (undefined where none arrived) to those of the inputs, in
/// order. `saved` has the tensors that record() was given.
using BackwardFn =
    std::function<std::vector<at::Tensor>(std::vector<at::Tensor>&& grads, Saved& saved)>;

/// Whether a forward pass being run now will be differentiated.
bool grad_enabled();

/// Makes `outputs` (fresh, without history) results of an operator over `inputs`. `name` must be a
/// literal. `saved` may have undefined tensors, and inputs and outputs. The closure itself holds no
/// tensors: what it needs is in `saved`, where accounts, hooks and recomputation see it.
void record(const char* name, const std::vector<at::Tensor>& inputs,
            const std::vector<at::Tensor>& outputs, std::vector<at::Tensor> saved,
            BackwardFn backward);

/// Turns autograd off below: what operators compute with.
class NoAutograd {
 public:
  NoAutograd();
  ~NoAutograd();
  NoAutograd(const NoAutograd&) = delete;

 private:
  struct Guard;
  alignas(8) unsigned char storage_[64];
};

} // namespace pentatron::nn
