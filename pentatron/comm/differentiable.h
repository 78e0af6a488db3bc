/// Collectives whose backward is not their own adjoint: the edges of a tensor-parallel region,
/// where every rank holds the same activation outside and different ones inside. On a group of one
/// each returns its argument.
///
/// | function    | forward                | backward                  |
/// |-------------|------------------------|---------------------------|
/// | copy_to     | identity               | all-reduce (sum)          |
/// | reduce_from | all-reduce (sum)       | identity                  |
/// | gather_from | all-gather along dim   | this rank's part of dim   |
/// | scatter_to  | this rank's part of dim| all-gather along dim      |
///
/// all_gather, reduce_scatter and all_to_all of collectives.h are differentiable as they stand: use
/// those where the ranks continue with different work, as under sequence parallel. Source: Shoeybi
/// et al. 2019 (arXiv:1909.08053) sec. 3, the operators f and g.
#pragma once

#include "pentatron/comm/group.h"

#include <cstdint>

namespace at {
class Tensor;
}

namespace pentatron::comm {

at::Tensor copy_to(const at::Tensor& x, const Group& group);
at::Tensor reduce_from(const at::Tensor& x, const Group& group);
///   x [..., d, ...] -> [..., d * group.size(), ...]
at::Tensor gather_from(const at::Tensor& x, int64_t dim, const Group& group);
///   x [..., d * group.size(), ...] -> [..., d, ...]
at::Tensor scatter_to(const at::Tensor& x, int64_t dim, const Group& group);

} // namespace pentatron::comm
