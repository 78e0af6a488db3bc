/// Recomputation of a part of a layer: tensors that its operators would save are recomputed in the
/// backward pass.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "pentatron/nn/context.h"
#include "pentatron/nn/saved.h"

namespace pentatron::nn {

/// Whether a module keeps its inputs. Those that come from another module can be made again by it.
enum class ModuleInputs : uint8_t { kKept, kMadeAgain };

using ModuleFn = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& inputs,
                                                       const ForwardContext& ctx)>;

/// fn(inputs, ctx), of which only the inputs are kept. A tensor made inside is not kept by the
/// operators inside, nor by those that take an output of fn. The first operator whose backward asks
/// for one runs fn once again, without autograd, which fills all of them. `fn` must be a function
/// of its arguments that calls pentatron's operators, and what it refers to is alive until
/// backward; what `ctx` points to, too. It must not compute gradients in its forward pass, as the
/// head does, nor write into its inputs. A module within a module is a part of it. With
/// ModuleInputs::kKept, inputs are kept even if another module has made them, so that modules in a
/// row run again one by one.
std::vector<at::Tensor> recompute_module(const ModuleFn& fn, const std::vector<at::Tensor>& inputs,
                                         const ForwardContext& ctx,
                                         ModuleInputs kept = ModuleInputs::kKept);

/// `outputs`, which an operator has made, can be made again by fn(inputs, ctx), to the bit:
/// operators that take them from here on keep nothing of them. What the operator itself keeps
/// stays. Nothing happens inside of a module, of which they are a part, and where nothing will be
/// differentiated.
void make_again(const std::vector<at::Tensor>& outputs, const ModuleFn& fn,
                const std::vector<at::Tensor>& inputs, const ForwardContext& ctx);

/// fn(inputs, ctx), as a module if ctx.recomputed has `part`. Of parts in a row, only the inputs of
/// the first are kept.
std::vector<at::Tensor> run_part(Part part, const ModuleFn& fn,
                                 const std::vector<at::Tensor>& inputs, const ForwardContext& ctx);

} // namespace pentatron::nn
