/// Elementwise reduction over the ranks' buffers, the same bits in every backend.
#pragma once

#include "pentatron/comm/group.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace pentatron::comm {

/// outs[k][i] = op over r, in order, of ins[r][i], for i in [begin, end) and every k. All tensors
/// are contiguous and of one dtype; an output may be the same memory as an input. Narrow floats
/// accumulate in fp32 and round once. Throws CommError for a dtype that has no sum or order here.
void reduce_slice(const std::vector<at::Tensor>& ins, const std::vector<at::Tensor>& outs,
                  int64_t begin, int64_t end, ReduceOp op);

/// Reduces raw memory: destinations[k][i] = op over r of sources[r][i], for i in [0, numel).
void reduce_buffers(at::ScalarType dtype, const std::vector<const void*>& sources,
                    const std::vector<void*>& destinations, int64_t numel, ReduceOp op);

/// Throws CommError unless reduce_slice takes this dtype.
void check_reducible(at::ScalarType dtype, ReduceOp op);

} // namespace pentatron::comm
