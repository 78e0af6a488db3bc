/// The section `parallel`: how a model lies over the ranks. Keys keep Megatron's spelling.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>

#include "pentatron/config/field.h"

namespace pentatron::parallelize {

enum class PipelineSchedule : uint8_t {
  kGpipe,
  k1F1B,
  kInterleaved,
  kZbH1,
  kZbH2,
  kZbV,
  kDualPipeV
};
constexpr auto enum_names(PipelineSchedule) {
  using S = PipelineSchedule;
  return std::array{config::name(S::kGpipe, "gpipe"),
                    config::name(S::k1F1B, "1f1b"),
                    config::name(S::kInterleaved, "interleaved"),
                    config::name(S::kZbH1, "zb_h1"),
                    config::name(S::kZbH2, "zb_h2"),
                    config::name(S::kZbV, "zb_v"),
                    config::name(S::kDualPipeV, "dualpipe_v")};
}

enum class PipelineBalance : uint8_t { kEven, kCost };
constexpr auto enum_names(PipelineBalance) {
  return std::array{config::name(PipelineBalance::kEven, "even"),
                    config::name(PipelineBalance::kCost, "cost")};
}

struct ParallelConfig {
  int64_t tensor_model_parallel_size = 1;
  int64_t pipeline_model_parallel_size = 1;
  std::optional<int64_t> virtual_pipeline_model_parallel_size;
  bool sequence_parallel = false;
  PipelineSchedule pipeline_schedule = PipelineSchedule::k1F1B;
  PipelineBalance pipeline_balance = PipelineBalance::kEven;
  std::string pipeline_model_parallel_layout;
  std::optional<int64_t> num_layers_in_first_pipeline_stage;
  std::optional<int64_t> num_layers_in_last_pipeline_stage;
  bool account_for_embedding_in_pipeline_split = false;
  bool account_for_loss_in_pipeline_split = false;
  int64_t context_parallel_size = 1;
  int64_t expert_model_parallel_size = 1;
  std::optional<int64_t> expert_tensor_parallel_size;
  bool use_tp_pp_dp_mapping = false;

  static constexpr auto fields() {
    using C = ParallelConfig;
    using config::field;
    return std::tuple{
        field("tensor_model_parallel_size", &C::tensor_model_parallel_size,
              "ranks that share every matrix")
            .range(1, 1 << 16)
            .unit("ranks"),
        field("pipeline_model_parallel_size", &C::pipeline_model_parallel_size,
              "ranks that hold consecutive layers")
            .range(1, 1 << 16)
            .unit("ranks"),
        field("virtual_pipeline_model_parallel_size", &C::virtual_pipeline_model_parallel_size,
              "stages of each pipeline rank under pipeline_schedule=interleaved; default: 2 there")
            .range(1, 1 << 16),
        field("sequence_parallel", &C::sequence_parallel,
              "split tokens over the tensor ranks where matrices are not split; needs "
              "tensor_model_parallel_size above 1 to have an effect"),
        field("pipeline_schedule", &C::pipeline_schedule,
              "order of forward and backward passes over the pipeline"),
        field(
            "pipeline_balance", &C::pipeline_balance,
            "even: layers are dealt out evenly; cost: by the FLOPs of layers, embedding and head"),
        field("pipeline_model_parallel_layout", &C::pipeline_model_parallel_layout,
              "stages as \"Ettt|(ttt|)*2tttL\": E embedding, t layer, L loss; replaces the even "
              "split"),
        field("num_layers_in_first_pipeline_stage", &C::num_layers_in_first_pipeline_stage,
              "layers of the first pipeline rank; default: an even share")
            .range(0, int64_t{1} << 20)
            .unit("layers"),
        field("num_layers_in_last_pipeline_stage", &C::num_layers_in_last_pipeline_stage,
              "layers of the last pipeline rank; default: an even share")
            .range(0, int64_t{1} << 20)
            .unit("layers"),
        field("account_for_embedding_in_pipeline_split",
              &C::account_for_embedding_in_pipeline_split,
              "count the embedding as a layer of the first stage"),
        field("account_for_loss_in_pipeline_split", &C::account_for_loss_in_pipeline_split,
              "count the head as a layer of the last stage"),
        field("context_parallel_size", &C::context_parallel_size,
              "ranks that share a sequence; not built yet, 1 is the only size that runs")
            .range(1, 1 << 16)
            .unit("ranks"),
        field("expert_model_parallel_size", &C::expert_model_parallel_size,
              "ranks that share experts; not built yet, 1 is the only size that runs")
            .range(1, 1 << 16)
            .unit("ranks"),
        field("expert_tensor_parallel_size", &C::expert_tensor_parallel_size,
              "tensor ranks of an expert; default: tensor_model_parallel_size; experts are not "
              "built yet")
            .range(1, 1 << 16)
            .unit("ranks"),
        field("use_tp_pp_dp_mapping", &C::use_tp_pp_dp_mapping,
              "order of ranks tp-cp-ep-pp-dp instead of tp-cp-ep-dp-pp")};
  }
  void validate(config::Violations& violations, std::string_view path) const;
};

/// The section `comm_overlap`: communication beside computation inside a layer.
struct CommOverlapConfig {
  bool tp = false;

  static constexpr auto fields() {
    using C = CommOverlapConfig;
    return std::tuple{config::field(
        "tp", &C::tp,
        "cut products of split layers into chunks, so that gathers and sums run beside them")};
  }
};

} // namespace pentatron::parallelize
