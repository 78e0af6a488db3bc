/// What a layer costs, free of LibTorch: the planner and the MFU figure sum these and nothing else.
#pragma once

#include <cstdint>
#include <vector>

namespace pentatron::nn {

/// The input of one rank's layer.
struct LayerShape {
  int64_t tokens = 0;
  /// Sum over documents of length^2: what attention scales with. batch * sequence^2 without
  /// packing.
  int64_t squared_lengths = 0;
  int64_t element_bytes = 4; ///< of activations
  int64_t acc_bytes = 4;     ///< of statistics
  int tp = 1;
  int64_t memory_tokens = 0;   ///< that cross-attention sees
  int64_t crossed_lengths = 0; ///< sum over documents of length * length in the memory
};

struct CollectiveCost {
  int64_t bytes = 0; ///< that each rank contributes
  int count = 0;     ///< forward and backward together
};

/// Forward and backward of one microbatch. FLOPs: a multiply-add counts 2; only matrix products
/// count (facts of the field: norms, softmax and elementwise work are not model FLOPs). The causal
/// half of attention is counted, not the full square.
struct Cost {
  double forward_gemm_flops = 0;
  double forward_attention_flops = 0;
  int64_t saved_bytes = 0;      ///< held from forward to backward, input of the segment included
  int64_t activation_bytes = 0; ///< of saved_bytes, those that train.recompute=selective frees
  CollectiveCost tp_all_reduce = {};

  /// Backward does two products for each of forward's.
  double forward_flops() const { return forward_gemm_flops + forward_attention_flops; }
  double total_flops() const { return 3 * forward_flops(); }

  Cost& operator+=(const Cost& other) {
    forward_gemm_flops += other.forward_gemm_flops;
    forward_attention_flops += other.forward_attention_flops;
    saved_bytes += other.saved_bytes;
    activation_bytes += other.activation_bytes;
    tp_all_reduce.bytes += other.tp_all_reduce.bytes;
    tp_all_reduce.count += other.tp_all_reduce.count;
    return *this;
  }
};

} // namespace pentatron::nn
