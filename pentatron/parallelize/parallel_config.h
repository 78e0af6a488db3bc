/// The section `parallel`: how a model is distributed over ranks. Keys have Megatron's names.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "pentatron/config/field.h"
#include "pentatron/parallel/context/context_parallel.h"
#include "pentatron/parallel/expert/dispatch.h"

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
  std::vector<parallel::ContextComm> cp_comm_type = {parallel::ContextComm::kP2p};
  std::vector<int64_t> hierarchical_context_parallel_sizes;
  int64_t expert_model_parallel_size = 1;
  std::optional<int64_t> expert_tensor_parallel_size;
  parallel::DispatchKind moe_token_dispatcher_type = parallel::DispatchKind::kAllToAll;
  bool use_tp_pp_dp_mapping = false;

  static constexpr auto fields() {
    using C = ParallelConfig;
    using config::field;
    return std::tuple{
        field("tensor_model_parallel_size", &C::tensor_model_parallel_size,
              "tensor parallelism: number of ranks that split each layer")
            .range(1, 1 << 16)
            .unit("ranks"),
        field("pipeline_model_parallel_size", &C::pipeline_model_parallel_size,
              "pipeline parallelism: number of ranks that the layers are divided among")
            .range(1, 1 << 16)
            .unit("ranks"),
        field("virtual_pipeline_model_parallel_size", &C::virtual_pipeline_model_parallel_size,
              "number of stages per pipeline rank with pipeline_schedule=interleaved; default: 2")
            .range(1, 1 << 16),
        field("sequence_parallel", &C::sequence_parallel,
              "sequence parallelism: tensor-parallel ranks also split the tokens in norms and "
              "dropout; needs tensor_model_parallel_size > 1"),
        field("pipeline_schedule", &C::pipeline_schedule,
              "order of forward and backward passes in the pipeline"),
        field("pipeline_balance", &C::pipeline_balance,
              "how layers are divided among pipeline stages; even: by number of layers; cost: by "
              "FLOPs, including the embedding and the output layer"),
        field("pipeline_model_parallel_layout", &C::pipeline_model_parallel_layout,
              "pipeline stages, such as \"Ettt|(ttt|)*2tttL\": E is the embedding, t a layer, "
              "m a layer of multi-token prediction, L the loss, | ends a stage; replaces the even "
              "split"),
        field("num_layers_in_first_pipeline_stage", &C::num_layers_in_first_pipeline_stage,
              "number of layers on the first pipeline rank; default: an even share")
            .range(0, int64_t{1} << 20)
            .unit("layers"),
        field("num_layers_in_last_pipeline_stage", &C::num_layers_in_last_pipeline_stage,
              "number of layers on the last pipeline rank; default: an even share")
            .range(0, int64_t{1} << 20)
            .unit("layers"),
        field("account_for_embedding_in_pipeline_split",
              &C::account_for_embedding_in_pipeline_split,
              "count the embedding as one layer when the layers are divided among pipeline stages"),
        field("account_for_loss_in_pipeline_split", &C::account_for_loss_in_pipeline_split,
              "count the output layer as one layer when the layers are divided among pipeline "
              "stages"),
        field("context_parallel_size", &C::context_parallel_size,
              "context parallelism: number of ranks that split each sequence")
            .range(1, 1 << 16)
            .unit("ranks"),
        field(
            "cp_comm_type", &C::cp_comm_type,
            "communication between context-parallel ranks in attention: one value for all layers, "
            "or one per layer; p2p: pass keys and values around a ring; all_gather: gather all "
            "keys and values; a2a: exchange heads for tokens; a2a+p2p: exchange heads for tokens "
            "within groups of ranks, and pass keys and values around a ring of these groups")
            .not_empty(),
        field("hierarchical_context_parallel_sizes", &C::hierarchical_context_parallel_sizes,
              "cp_comm_type=[a2a+p2p]: two numbers whose product is context_parallel_size: the "
              "number of ranks in each group that exchanges heads for tokens, and the number of "
              "groups")
            .range(2, 1 << 16)
            .unit("ranks"),
        field("expert_model_parallel_size", &C::expert_model_parallel_size,
              "expert parallelism: number of ranks that the experts of a layer are divided among; "
              "taken from the tensor-parallel and data-parallel ranks")
            .range(1, 1 << 16)
            .unit("ranks"),
        field("expert_tensor_parallel_size", &C::expert_tensor_parallel_size,
              "tensor parallelism of experts: number of ranks that split each expert; default: "
              "tensor_model_parallel_size")
            .range(1, 1 << 16)
            .unit("ranks"),
        field("moe_token_dispatcher_type", &C::moe_token_dispatcher_type,
              "how tokens are sent to the ranks of their experts; alltoall: each token goes only "
              "to the ranks of its experts; allgather: every token goes to all expert-parallel "
              "ranks, which communicates less if there are few ranks and many experts per token"),
        field("use_tp_pp_dp_mapping", &C::use_tp_pp_dp_mapping,
              "order in which ranks are assigned to the parallel dimensions; true: tp-cp-ep-pp-dp; "
              "false: tp-cp-ep-dp-pp")};
  }
  void validate(config::Violations& violations, std::string_view path) const;
};

/// The section `comm_overlap`: overlap of communication and computation inside layers.
struct CommOverlapConfig {
  bool tp = false;
  bool pp = true;
  bool cp = true;
  bool moe_shared_expert = false;
  bool moe_expert_parallel = false;

  static constexpr auto fields() {
    using C = CommOverlapConfig;
    return std::tuple{
        config::field("tp", &C::tp,
                      "split the matrix products of tensor-parallel layers into "
                      "chunks to overlap them with communication"),
        config::field("pp", &C::pp,
                      "start to receive from a neighboring pipeline rank one pass before the pass "
                      "that needs the data; false: right before that pass"),
        config::field("cp", &C::cp,
                      "exchange keys and values of the next step of ring attention while the "
                      "attention of this step is computed; false: after it"),
        config::field("moe_shared_expert", &C::moe_shared_expert,
                      "compute the shared experts while tokens are sent to the routed experts"),
        config::field(
            "moe_expert_parallel", &C::moe_expert_parallel,
            "alternate the forward pass of one microbatch with the backward pass of "
            "another, so that one computes while tokens of the other are sent between "
            "ranks; requires parallel.pipeline_schedule=dualpipe_v, which also works with "
            "one pipeline rank")};
  }
};

} // namespace pentatron::parallelize
