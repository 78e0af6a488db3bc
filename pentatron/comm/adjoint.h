/// The autograd forms behind all_gather, reduce_scatter and all_to_all of collectives.h, which call
/// them when a gradient is wanted. Arguments are checked already, and dims are not negative.
#pragma once

#include "pentatron/comm/group.h"

#include <cstdint>
#include <vector>

namespace at {
class Tensor;
}

namespace pentatron::comm::adjoint {

at::Tensor all_gather(const at::Tensor& x, int64_t dim, const Group& group);
at::Tensor reduce_scatter(const at::Tensor& x, int64_t dim, const Group& group);
at::Tensor all_to_all_rows(const at::Tensor& x, const std::vector<int64_t>& send_rows,
                           const std::vector<int64_t>& recv_rows, const Group& group);
at::Tensor all_to_all_dims(const at::Tensor& x, int64_t split_dim, int64_t concat_dim,
                           const Group& group);

} // namespace pentatron::comm::adjoint
