/// The matrices that a parameter consists of, for update rules that treat each as a whole: the
/// parts of a fused weight and the members of a stack are matrices of their own. Where tensor ranks
/// hold parts of a matrix, one of them is given all of it.
#pragma once

#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "pentatron/comm/group.h"
#include "pentatron/nn/param.h"

namespace pentatron::optim {

struct MatrixOptions {
  bool split_qkv = true; ///< q, k and v of a fused weight are separate matrices
  bool blocks = false;   ///< what a tensor rank holds counts as the matrix: nothing is exchanged
};

/// Tensors [stack, rows, columns] that `update` is called with: equal matrices.
using MatrixUpdate = std::function<void(const at::Tensor&)>;

/// Something of a parameter's rank: one number for each element.
struct MatrixField {
  const nn::Param* param = nullptr;
  at::Tensor value; ///< of the rank's shape
};

/// Calls `update` for every matrix of `fields`, which it changes in place. Ranks of `tensor` hold
/// the parts of the same parameters, in the same order; each calls `update` for some of the
/// matrices that are split, and all for the others. Collective over `tensor` if something is split.
void update_matrices(const std::vector<MatrixField>& fields, const MatrixOptions& options,
                     const comm::Group& tensor, const MatrixUpdate& update);

} // namespace pentatron::optim
