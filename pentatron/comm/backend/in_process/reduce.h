/// Elementwise reduction of one slice over the ranks' buffers.
#pragma once

#include "pentatron/comm/group.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace pentatron::comm::in_process {

/// outs[k][i] = op over r, in order, of ins[r][i], for i in [begin, end) and every k. All tensors
/// are contiguous and of one dtype; an output may be the same memory as an input. Narrow floats
/// accumulate in fp32 and round once. Throws CommError for a dtype that has no sum or order here.
void reduce_slice(const std::vector<at::Tensor>& ins, const std::vector<at::Tensor>& outs,
                  int64_t begin, int64_t end, ReduceOp op);

/// Throws CommError unless reduce_slice takes this dtype.
void check_reducible(at::ScalarType dtype, ReduceOp op);

} // namespace pentatron::comm::in_process
