/// The section `ddp`: how data-parallel ranks share gradients, optimizer state and parameters.
#pragma once

#include <cstdint>
#include <string_view>
#include <tuple>

#include "pentatron/config/field.h"

namespace pentatron::parallel {

struct DdpConfig {
  int64_t zero_stage = 0;
  int64_t bucket_size = 40'000'000;
  bool overlap_grad_reduce = true;
  bool overlap_param_gather = true;
  bool grad_reduce_in_fp32 = true;
  bool fp8_param_gather = false;
  int64_t num_distributed_optimizer_instances = 1;

  static constexpr auto fields() {
    using C = DdpConfig;
    using config::field;
    return std::tuple{
        field("zero_stage", &C::zero_stage,
              "ZeRO stage: state that is sharded over data-parallel ranks; 0: none, 1: optimizer "
              "state, 2: also gradients, 3: also parameters")
            .range(0, 3),
        field("bucket_size", &C::bucket_size,
              "minimum number of elements in a gradient bucket; all gradients of a bucket are "
              "reduced in one operation")
            .min(1),
        field("overlap_grad_reduce", &C::overlap_grad_reduce,
              "reduce gradient buckets while the backward pass is running"),
        field("overlap_param_gather", &C::overlap_param_gather,
              "gather sharded parameters in the background before the forward or backward pass "
              "needs them"),
        field("grad_reduce_in_fp32", &C::grad_reduce_in_fp32,
              "reduce the gradients of bf16 models in fp32; false: send them in bf16 and sum them "
              "in fp32"),
        field(
            "fp8_param_gather", &C::fp8_param_gather,
            "gather the weights of FP8 products as FP8 codes, one byte per element, and keep only "
            "these codes besides each rank's own shard"),
        field("num_distributed_optimizer_instances", &C::num_distributed_optimizer_instances,
              "number of groups of data-parallel ranks for zero_stage; each group holds a complete "
              "copy of the state, sharded over its ranks")
            .min(1)};
  }
  void validate(config::Violations& violations, std::string_view path) const;
};

} // namespace pentatron::parallel
