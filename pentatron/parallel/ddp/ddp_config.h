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
  int64_t num_distributed_optimizer_instances = 1;

  static constexpr auto fields() {
    using C = DdpConfig;
    using config::field;
    return std::tuple{
        field("zero_stage", &C::zero_stage,
              "what data-parallel ranks split: 0 nothing, 1 optimizer state, 2 gradients too, 3 "
              "parameters too")
            .range(0, 3),
        field("bucket_size", &C::bucket_size,
              "gradients are reduced together from this many elements on")
            .min(1),
        field("overlap_grad_reduce", &C::overlap_grad_reduce,
              "reduce buckets while backward still runs"),
        field("overlap_param_gather", &C::overlap_param_gather,
              "gather parameters ahead of the forward or backward pass that needs them"),
        field("grad_reduce_in_fp32", &C::grad_reduce_in_fp32,
              "send the gradients of bf16 models in fp32; false: in bf16, summed in fp32"),
        field("num_distributed_optimizer_instances", &C::num_distributed_optimizer_instances,
              "split inside so many groups of data-parallel ranks that hold copies of each other")
            .min(1)};
  }
  void validate(config::Violations& violations, std::string_view path) const;
};

} // namespace pentatron::parallel
