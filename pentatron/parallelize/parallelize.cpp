#include "pentatron/parallelize/parallelize.h"

#include <ATen/ATen.h>

#include <algorithm>

#include <fmt/format.h>

#include "pentatron/base/error.h"
#include "pentatron/base/planted_bug.h"
#include "pentatron/comm/collectives.h"

namespace pentatron::parallelize {

namespace {

/// The ranks over which the experts of a layer lie.
constexpr const char* kExpertGroup = "etp-ep";
/// Ranks that have tokens of the same samples.
constexpr const char* kSampleGroup = "tp-cp";
/// Parts of cp, of ContextComm::kA2aP2p: neighbours, and one of each.
constexpr const char *kContextInner = "cp-inner", *kContextOuter = "cp-outer";

/// Key-value heads that several of `tp` ranks share: how many ranks; 1 if every rank has its own.
int ranks_per_kv_head(const models::ModelConfig& model, int tp) {
  const int64_t heads = model.query_groups();
  return heads < tp ? static_cast<int>(tp / heads) : 1;
}

/// The model of this rank without storage.
std::unique_ptr<models::Model> make_part(const ModelOptions& options,
                                         const comm::ParallelGroups& groups,
                                         const PipelinePlan& plan) {
  models::ModelBuild build = options.build;
  if (!plan.stages.empty()) {
    const int rank = groups.pp().rank();
    build.stages = plan.stages_of(rank);
    for (const models::SharedParam& param : models::model_spec(options.config).shared) {
      const std::vector<int> holders = plan.ranks_of(param.segments);
      const auto here = std::ranges::find(holders, rank);
      if (here != holders.end())
        build.shared[param.name] = {static_cast<int>(here - holders.begin()),
                                    static_cast<int>(holders.size())};
    }
  }
  const bool splits_samples =
      groups.lists(kSampleGroup) && !planted("balance_counts_of_one_context_rank");
  if (options.config.num_moe_experts && groups.lists(kExpertGroup))
    build.experts = {.group = groups.get(kExpertGroup),
                     .etp = groups.size("etp"),
                     .samples = splits_samples ? groups.get(kSampleGroup) : groups.tp(),
                     .kind = options.build.experts.kind,
                     .overlap_shared = options.build.experts.overlap_shared,
                     .turns = options.build.experts.turns};
  auto model = models::make_model(options.config, build);
  model->params().make_buffers(options.device);
  if (options.prepare) options.prepare(model->params());
  return model;
}

/// Every pipeline rank knows its own parameters, and has to know which gradients the others send.
void limit_backward(models::Model& model, const comm::Group& pp) {
  const int64_t segments = model.spec().num_segments();
  const at::Tensor trains = at::zeros({segments}, at::kLong);
  for (const nn::Param& param : model.params())
    for (const int64_t segment : param.segments())
      if (param.trainable) trains[segment] = 1;
  comm::all_reduce_(trains, comm::ReduceOp::kMax, pp);
  const int64_t* const first = trains.const_data_ptr<int64_t>();
  model.limit_backward(std::vector<bool>(first, first + segments));
}

void finish(models::Model& model, const ModelOptions& options) {
  model.finish(options.device,
               std::vector<int64_t>(model.spec().streams.size(), options.max_sequence));
}

} // namespace

std::vector<const nn::Chunk*> chunks_of(const models::Model& model) {
  std::vector<const nn::Chunk*> chunks;
  for (const nn::Chunk& chunk : model.chunks()) chunks.push_back(&chunk);
  return chunks;
}

pipeline::Boundaries boundaries_of(const models::Model& model, const StagePlaces& places,
                                   at::Device device) {
  pipeline::Boundaries boundaries{.flows = model.spec().flows,
                                  .before_stage = {},
                                  .gradients_before_stage = {},
                                  .dtype = model.dtype(),
                                  .device = device};
  for (const SegmentRange& stage : places.stages)
    boundaries.before_stage.push_back(model.spec().alive_before(stage.begin));
  for (const SegmentRange& stage : places.stages)
    boundaries.gradients_before_stage.push_back(model.gradients_before(stage.begin));
  return boundaries;
}

std::vector<int> PipelinePlan::ranks_of(const std::vector<int64_t>& segments) const {
  std::vector<int> ranks;
  for (const int64_t segment : segments) {
    if (segment != segments.front() && segment != segments.back() &&
        planted("shared_weight_of_its_first_and_last_reader"))
      continue;
    for (size_t s = 0; s < stages.size(); ++s) {
      if (segment < stages[s].begin || segment >= stages[s].end) continue;
      if (std::ranges::find(ranks, rank_of_stage[s]) == ranks.end())
        ranks.push_back(rank_of_stage[s]);
    }
  }
  return ranks;
}

std::vector<SegmentRange> PipelinePlan::stages_of(int rank) const {
  std::vector<SegmentRange> ranges;
  for (size_t s = 0; s < stages.size(); ++s)
    if (rank_of_stage[s] == rank) ranges.push_back(stages[s]);
  return ranges;
}

pipeline::Schedule PipelinePlan::make(int num_microbatches) const {
  const int ranks = *std::max_element(rank_of_stage.begin(), rank_of_stage.end()) + 1;
  return pipeline::make_schedule(schedule, ranks, virtual_stages, num_microbatches);
}

std::vector<pipeline::StageSegment> stage_segments(const models::ModelConfig& model) {
  models::ModelSpec spec = models::model_spec(model); // of a million layers, perhaps
  std::vector<pipeline::StageSegment> segments;
  segments.reserve(spec.segments.size());
  for (models::SegmentSpec& segment : spec.segments)
    segments.push_back({std::move(segment.name), segment.letter, segment.is_layer});
  return segments;
}

PipelinePlan plan_pipeline(const ParallelConfig& parallel, const models::ModelConfig& model,
                           std::vector<int64_t> lengths, double targets) {
  PipelinePlan plan;
  plan.schedule = config::to_string(parallel.pipeline_schedule);
  plan.virtual_stages = static_cast<int>(parallel.virtual_pipeline_model_parallel_size.value_or(0));
  const auto ranks = static_cast<int>(parallel.pipeline_model_parallel_size);
  plan.rank_of_stage =
      pipeline::make_schedule(plan.schedule, ranks, plan.virtual_stages, 1).rank_of_stage;
  pipeline::StageOptions options{.segments = stage_segments(model),
                                 .rank_of_stage = plan.rank_of_stage,
                                 .layout = parallel.pipeline_model_parallel_layout,
                                 .first_rank_layers = parallel.num_layers_in_first_pipeline_stage,
                                 .last_rank_layers = parallel.num_layers_in_last_pipeline_stage,
                                 .count_embedding =
                                     parallel.account_for_embedding_in_pipeline_split,
                                 .count_loss = parallel.account_for_loss_in_pipeline_split};
  if (parallel.pipeline_balance == PipelineBalance::kCost) {
    const models::ModelSpec spec = models::model_spec(model);
    if (lengths.empty()) lengths.assign(spec.streams.size(), 1);
    const std::vector<nn::LayerShape> shapes = models::stream_shapes(spec, 1, lengths, targets);
    for (size_t segment = 0; segment < options.segments.size(); ++segment)
      options.costs.push_back(
          models::segment_cost(model, shapes, static_cast<int64_t>(segment)).total_flops());
  }
  plan.stages = pipeline::assign_stages(options);
  return plan;
}

int data_parallel_size(const ParallelConfig& parallel, int world_size) {
  const int64_t model_ranks = parallel.tensor_model_parallel_size *
                              parallel.pipeline_model_parallel_size *
                              parallel.context_parallel_size;
  return static_cast<int>(std::max<int64_t>(1, world_size / std::max<int64_t>(1, model_ranks)));
}

const char* rank_order(const ParallelConfig& parallel) {
  return parallel.use_tp_pp_dp_mapping ? "tp-cp-ep-pp-dp" : "tp-cp-ep-dp-pp";
}

int expert_tensor_size(const ParallelConfig& parallel) {
  return static_cast<int>(
      parallel.expert_tensor_parallel_size.value_or(parallel.tensor_model_parallel_size));
}

int expert_data_size(const ParallelConfig& parallel, int world_size) {
  const int64_t model_ranks = expert_tensor_size(parallel) * parallel.expert_model_parallel_size *
                              parallel.pipeline_model_parallel_size;
  return static_cast<int>(std::max<int64_t>(1, world_size / std::max<int64_t>(1, model_ranks)));
}

namespace {

/// The groups of ContextComm::kA2aP2p.
std::vector<comm::NeededGroup> context_parts(const ParallelConfig& parallel) {
  if (parallel.hierarchical_context_parallel_sizes.size() != 2) return {};
  const auto inner = static_cast<int>(parallel.hierarchical_context_parallel_sizes[0]),
             outer = static_cast<int>(parallel.hierarchical_context_parallel_sizes[1]);
  std::vector<std::vector<int>> neighbours(static_cast<size_t>(outer)),
      rings(static_cast<size_t>(inner));
  for (int rank = 0; rank < inner * outer; ++rank) {
    neighbours[static_cast<size_t>(rank / inner)].push_back(rank);
    rings[static_cast<size_t>(rank % inner)].push_back(rank);
  }
  return {{kContextInner, "cp", std::move(neighbours)}, {kContextOuter, "cp", std::move(rings)}};
}

} // namespace

parallel::ContextParallel context_parallel(const ParallelConfig& parallel, bool overlap,
                                           const comm::ParallelGroups& groups) {
  parallel::ContextParallel context{.comm = parallel.cp_comm_type, .overlap = overlap};
  if (groups.lists("cp")) context.group = groups.get("cp");
  if (groups.lists(kContextInner)) {
    context.inner = groups.get(kContextInner);
    context.outer = groups.get(kContextOuter);
  }
  return context;
}

std::vector<comm::NeededGroup> needed_groups(const ParallelConfig& parallel,
                                             const parallel::DdpConfig* ddp,
                                             const models::ModelConfig& model,
                                             const PipelinePlan& plan, int world_size) {
  std::vector<comm::NeededGroup> needed = {comm::NeededGroup::of_axes("tp"),
                                           comm::NeededGroup::of_axes("pp")};
  if (model.num_moe_experts) needed.push_back(comm::NeededGroup::of_axes(kExpertGroup));
  for (comm::NeededGroup& group : pipeline::channel_groups(plan.rank_of_stage, ddp != nullptr))
    needed.push_back(std::move(group));
  if (ddp == nullptr) {
    needed.push_back(comm::NeededGroup::of_axes("dp")); // of copies
    return needed;
  }
  const auto add = [&](std::vector<comm::NeededGroup> more) {
    needed.insert(needed.end(), more.begin(), more.end());
  };
  const auto cp = static_cast<int>(parallel.context_parallel_size);
  const int dp = data_parallel_size(parallel, world_size);
  if (cp == 1) {
    add(parallel::data_parallel_groups("dp", dp, *ddp));
  } else {
    add({comm::NeededGroup::of_axes("dp"), comm::NeededGroup::of_axes("cp")});
    add(context_parts(parallel));
    if (model.num_moe_experts) add({comm::NeededGroup::of_axes(kSampleGroup)});
    add(parallel::data_parallel_groups("dp-cp", dp * cp, *ddp));
  }
  if (model.num_moe_experts) {
    add(parallel::data_parallel_groups("edp", expert_data_size(parallel, world_size), *ddp));
    add({comm::NeededGroup::of_axes("etp")});
  }
  const auto tp = static_cast<int>(parallel.tensor_model_parallel_size);
  if (const int share = ranks_per_kv_head(model, tp); share > 1) {
    std::vector<std::vector<int>> parts(static_cast<size_t>(tp / share));
    for (int rank = 0; rank < tp; ++rank) parts[static_cast<size_t>(rank / share)].push_back(rank);
    add({{nn::kTpReplicaAxis, "tp", std::move(parts)}});
  }
  for (const models::SharedParam& param : models::model_spec(model).shared) {
    const std::vector<int> holders = plan.ranks_of(param.segments);
    if (holders.size() > 1) add({{nn::shared_axis(param.name), "pp", {holders}}});
  }
  return needed;
}

comm::ParallelGroups make_groups(const comm::Group& world, const ParallelConfig& parallel,
                                 const parallel::DdpConfig* ddp, const models::ModelConfig& model,
                                 const PipelinePlan& plan) {
  return {world,
          {.tp = static_cast<int>(parallel.tensor_model_parallel_size),
           .cp = static_cast<int>(parallel.context_parallel_size),
           .pp = static_cast<int>(parallel.pipeline_model_parallel_size),
           .ep = static_cast<int>(parallel.expert_model_parallel_size),
           .etp = expert_tensor_size(parallel),
           .order = rank_order(parallel)},
          needed_groups(parallel, ddp, model, plan, world.size())};
}

RankModel make_model(const ModelOptions& options, const comm::ParallelGroups& groups,
                     const PipelinePlan& plan) {
  RankModel model;
  model.device = options.device;
  if (!plan.stages.empty())
    model.places = {
        groups.pp(), {groups, plan.rank_of_stage, false}, plan.rank_of_stage, plan.stages};
  model.model = make_part(options, groups, plan);
  model.store =
      std::make_unique<nn::ResidentStore>(model.model->params(), options.device, options.gradients);
  finish(*model.model, options);
  return model;
}

TrainingModel make_training_model(const ModelOptions& options, const PipelinePlan& plan,
                                  const parallel::DdpConfig& ddp,
                                  const comm::ParallelGroups& groups) {
  TrainingModel model;
  model.device = options.device;
  model.turns = options.build.experts.turns;
  model.places = {groups.pp(), {groups, plan.rank_of_stage, true}, plan.rank_of_stage, plan.stages};
  model.model = make_part(options, groups, plan);
  limit_backward(*model.model, groups.pp());
  model.store =
      std::make_unique<parallel::DataParallel>(model.model->params(), options.device, ddp, groups);
  finish(*model.model, options);
  return model;
}

} // namespace pentatron::parallelize
