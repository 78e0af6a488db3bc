/// The cost of a layer, without LibTorch. The memory estimate and MFU are sums of these costs.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "pentatron/base/document_lengths.h"
#include "pentatron/nn/recomputed_parts.h"

namespace pentatron::nn {

/// Bytes for each element that a product in low precision makes beside its result; zeros: there is
/// none.
struct QuantisedBytes {
  int64_t values = 0;      ///< of an operand, as it is multiplied
  int64_t sum = 0;         ///< of the input's gradient, before it is rounded
  int64_t transformed = 0; ///< of an operand of the weight's gradient, before it is quantised
  int64_t product = 0;     ///< of the weight's gradient, before it is scaled and added
  double shapes = 1;       ///< as many as a microbatch has, in which weights count once
};

/// The input of one rank's layer.
struct LayerShape {
  int64_t tokens = 0;
  /// Sum over documents of length^2: what attention scales with. batch * sequence^2 without
  /// packing.
  int64_t squared_lengths = 0;
  DocumentLengths lengths = {}; ///< of the documents; empty: they are equal
  int64_t element_bytes = 4;    ///< of activations
  int64_t acc_bytes = 4;        ///< of statistics
  int tp = 1;
  int64_t memory_tokens = 0;   ///< that cross-attention sees
  int64_t crossed_lengths = 0; ///< sum over documents of length * length in the memory
  /// Tokens whose logits are computed, of all losses together (parallel/tensor/head_rows.h); none:
  /// every token of each.
  std::optional<int64_t> head_rows = {};
  bool sequence_parallel = false;
  int ep = 1, etp = 1;         ///< ranks that experts lie on, and ranks that split each
  bool gathers_tokens = false; ///< parallel.moe_token_dispatcher_type=allgather
  /// Context ranks pass on keys and values, or what they are made of where that is less.
  bool keys_travel = false;
  QuantisedBytes quantised = {}; ///< of linear layers

  /// Tokens that a tensor rank routes to experts.
  int64_t own_tokens() const { return (tokens + tp - 1) / tp; }
  /// Whether backward gathers tokens of the other tensor ranks.
  bool gathers_again() const { return sequence_parallel && tp > 1; }
  /// The tokens that a tensor rank holds between split layers.
  int64_t outer_tokens() const { return sequence_parallel ? own_tokens() : tokens; }
};

struct CollectiveCost {
  int64_t bytes = 0; ///< that each rank contributes
  int count = 0;     ///< forward and backward together
};

/// What carries tokens to experts and back, if all experts have equal loads.
struct ExchangeCost {
  double forward_bytes = 0, backward_bytes = 0; ///< that a rank sends to other ranks
  int forward_count = 0, backward_count = 0;    ///< of collectives

  ExchangeCost& operator+=(const ExchangeCost& other) {
    forward_bytes += other.forward_bytes;
    backward_bytes += other.backward_bytes;
    forward_count += other.forward_count;
    backward_count += other.backward_count;
    return *this;
  }
};

/// Forward and backward of one microbatch. FLOPs: a multiply-add counts 2; only matrix products
/// count (facts of the field: norms, softmax and elementwise work are not model FLOPs). The causal
/// half of attention is counted, not the full square.
struct Cost {
  double forward_gemm_flops = 0;
  double forward_attention_flops = 0;
  /// Of forward_gemm_flops, products that read what the segment takes, and the memory, as they are:
  /// where nothing before trains, backward makes no gradient of their input.
  double input_gemm_flops = 0, memory_gemm_flops = 0;
  int64_t saved_bytes = 0; ///< held from forward to backward, input of the segment included
  /// The most that backward of the MLP, and that of attention, holds beside what is still kept.
  int64_t mlp_working_bytes = 0, attention_working_bytes = 0;
  int64_t mlp_weight_bytes = 0; ///< beside mlp_working_bytes, whatever the number of tokens
  std::array<int64_t, kNumParts> part_bytes = {}; ///< of saved_bytes, those that a part frees
  std::array<double, kNumParts> part_flops = {};  ///< of forward, those that it computes again
  CollectiveCost tp_all_reduce = {};
  ExchangeCost expert_exchange = {};

  int64_t& bytes_of(Part part) { return part_bytes[static_cast<size_t>(part)]; }
  int64_t bytes_of(Part part) const { return part_bytes[static_cast<size_t>(part)]; }
  double& flops_of(Part part) { return part_flops[static_cast<size_t>(part)]; }
  /// Of saved_bytes of one layer, what recomputing `parts` frees; a part within another that is
  /// recomputed, too, frees nothing more.
  int64_t freed_bytes(Parts parts) const { return sum_over(parts, part_bytes); }
  double recomputed_flops(Parts parts) const { return sum_over(parts, part_flops); }

  /// Backward does two products for each of forward's.
  double forward_flops() const { return forward_gemm_flops + forward_attention_flops; }
  double total_flops() const { return 3 * forward_flops(); }

  Cost& operator+=(const Cost& other) {
    forward_gemm_flops += other.forward_gemm_flops;
    forward_attention_flops += other.forward_attention_flops;
    input_gemm_flops += other.input_gemm_flops;
    memory_gemm_flops += other.memory_gemm_flops;
    saved_bytes += other.saved_bytes;
    mlp_working_bytes = std::max(mlp_working_bytes, other.mlp_working_bytes);
    attention_working_bytes = std::max(attention_working_bytes, other.attention_working_bytes);
    mlp_weight_bytes = std::max(mlp_weight_bytes, other.mlp_weight_bytes);
    for (size_t i = 0; i < kNumParts; ++i) {
      part_bytes[i] += other.part_bytes[i];
      part_flops[i] += other.part_flops[i];
    }
    tp_all_reduce.bytes += other.tp_all_reduce.bytes;
    tp_all_reduce.count += other.tp_all_reduce.count;
    expert_exchange += other.expert_exchange;
    return *this;
  }

 private:
  template <class T> T sum_over(Parts parts, const std::array<T, kNumParts>& values) const {
    const auto on = [&](Part part) {
      return parts.has(part) && part_bytes[static_cast<size_t>(part)] > 0;
    };
    const bool mlp = on(Part::kMlp), moe = on(Part::kMoe), shared = moe || on(Part::kSharedExperts);
    T sum = 0;
    for (const auto& [part, within] : {std::pair{Part::kCoreAttention, false},
                                       {Part::kNorm, false},
                                       {Part::kMlaUpProj, false},
                                       {Part::kMlp, false},
                                       {Part::kMoe, false},
                                       {Part::kSharedExperts, moe},
                                       {Part::kMoeActivation, moe},
                                       {Part::kMlpActivation, mlp || shared}})
      if (on(part) && !within) sum += values[static_cast<size_t>(part)];
    return sum;
  }
};

} // namespace pentatron::nn
