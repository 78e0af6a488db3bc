#include "pentatron/parallelize/parallelize.h"

#include <ATen/ATen.h>

#include <algorithm>

#include <fmt/format.h>

#include "pentatron/base/error.h"
#include "pentatron/base/planted_bug.h"
#include "pentatron/comm/collectives.h"
#include "pentatron/parallel/context/zigzag.h"

namespace pentatron::parallelize {

namespace {

/// The ranks over which the experts of a layer lie.
constexpr const char* kExpertGroup = "etp-ep";
/// Ranks that have tokens of the same samples.
constexpr const char* kSampleGroup = "tp-cp";
constexpr const char *kContextKey = "parallel.context_parallel_size",
                     *kContextComm = "parallel.cp_comm_type";
/// Parts of cp, of ContextComm::kA2aP2p: neighbours, and one of each.
constexpr const char *kContextInner = "cp-inner", *kContextOuter = "cp-outer";

int expert_tensor_size(const ParallelConfig& parallel) {
  return static_cast<int>(
      parallel.expert_tensor_parallel_size.value_or(parallel.tensor_model_parallel_size));
}

/// Ranks that hold the same experts.
int expert_data_size(const ParallelConfig& parallel, int world_size) {
  const int64_t model_ranks = expert_tensor_size(parallel) * parallel.expert_model_parallel_size *
                              parallel.pipeline_model_parallel_size;
  return static_cast<int>(std::max<int64_t>(1, world_size / std::max<int64_t>(1, model_ranks)));
}

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
                     .samples = splits_samples ? groups.get(kSampleGroup) : groups.tp()};
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
    for (const int64_t unit : param.units())
      if (param.trainable) trains[unit] = 1;
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
                           std::vector<int64_t> lengths) {
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
    const std::vector<nn::LayerShape> shapes = models::stream_shapes(spec, 1, lengths);
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

namespace {

void check_experts(const ParallelConfig& parallel, const parallel::DdpConfig& ddp,
                   const models::ModelConfig& model, int world_size,
                   config::Violations& violations) {
  const std::string ep_key = "parallel.expert_model_parallel_size",
                    etp_key = "parallel.expert_tensor_parallel_size";
  const int64_t ep = parallel.expert_model_parallel_size, etp = expert_tensor_size(parallel),
                pp = parallel.pipeline_model_parallel_size;
  if (!model.num_moe_experts) {
    if (ep > 1)
      violations.add(ep_key,
                     fmt::format("{}={} has no effect on a model without experts", ep_key, ep),
                     fmt::format("{}=1", ep_key));
    if (parallel.expert_tensor_parallel_size && etp != parallel.tensor_model_parallel_size)
      violations.add(etp_key,
                     fmt::format("{}={} has no effect on a model without experts", etp_key, etp),
                     fmt::format("{}=null", etp_key));
    return;
  }
  const int64_t experts = *model.num_moe_experts;
  if (experts % ep != 0)
    violations.add(
        ep_key, fmt::format("{}={} does not divide model.num_moe_experts={}", ep_key, ep, experts),
        fmt::format("{} in {{{}}}", ep_key, config::divisors(experts)));
  if (const int64_t ffn = model.expert_ffn_size(); ffn % etp != 0)
    violations.add(
        etp_key,
        fmt::format("{}={} does not divide the experts' hidden size of {}", etp_key, etp, ffn),
        fmt::format("{} in {{{}}}", etp_key, config::divisors(ffn)));
  if (world_size % (etp * ep * pp) != 0)
    violations.add(
        ep_key,
        fmt::format("{}={} x {}={} x {} pipeline ranks needs a multiple of {} ranks, and "
                    "the run has {}",
                    ep_key, ep, etp_key, etp, pp, etp * ep * pp, world_size),
        fmt::format("--ranks {}", (world_size / (etp * ep * pp) + 1) * etp * ep * pp));
  const int edp = expert_data_size(parallel, world_size);
  if (const int64_t n = ddp.num_distributed_optimizer_instances; edp % n != 0)
    violations.add(
        "ddp.num_distributed_optimizer_instances",
        fmt::format("ddp.num_distributed_optimizer_instances={} does not divide the {} "
                    "ranks that hold the same experts",
                    n, edp),
        fmt::format("ddp.num_distributed_optimizer_instances in {{{}}}", config::divisors(edp)));
}

/// Tokens of a microbatch on each context rank, in each stream.
std::vector<int64_t> tokens_of_ranks(const MicroBatch& micro_batch, int cp) {
  std::vector<int64_t> tokens;
  for (const int64_t length : micro_batch.lengths)
    for (int rank = 0; rank < cp; ++rank)
      tokens.push_back(micro_batch.samples * parallel::zigzag_tokens(length, rank, cp));
  return tokens;
}

/// Heads that ranks exchange for tokens.
void check_context_heads(const ParallelConfig& parallel, const models::ModelConfig& model,
                         int64_t ranks, config::Violations& violations) {
  const int64_t tp = parallel.tensor_model_parallel_size, heads = model.num_attention_heads / tp,
                kv_heads = std::max<int64_t>(1, model.query_groups() / tp);
  for (const auto& [what, n] : {std::pair{"query", heads}, {"key-value", kv_heads}}) {
    if (n % ranks == 0) continue;
    violations.add(kContextComm,
                   fmt::format("{} exchanges heads for tokens among {} ranks, which do not divide "
                               "the {} {} head{} of a tensor-parallel rank",
                               kContextComm, ranks, n, what, n == 1 ? "" : "s"),
                   fmt::format("{}=[p2p]", kContextComm));
    return;
  }
}

void check_context(const ParallelConfig& parallel, const models::ModelConfig& model,
                   const MicroBatch& micro_batch, config::Violations& violations) {
  using parallel::ContextComm;
  const int64_t cp = parallel.context_parallel_size;
  if (cp == 1) return;
  const std::string size = fmt::format("{}={}", kContextKey, cp),
                    one = fmt::format("{}=1", kContextKey);
  if (const std::string reason = models::model_spec(model.with_one_layer()).whole_samples;
      !reason.empty())
    violations.add(kContextKey,
                   fmt::format("{} splits samples, which {} does not support", size, reason), one);
  for (const int64_t length : micro_batch.lengths)
    if (length < 2 * cp)
      violations.add(
          kContextKey,
          fmt::format("{} cannot cut a sample of {} tokens into {} chunks", size, length, 2 * cp),
          length < 4 ? one : fmt::format("{}={}", kContextKey, length / 2));
  const std::vector<ContextComm>& comm = parallel.cp_comm_type;
  if (comm.size() != 1 && std::ssize(comm) != model.num_layers)
    violations.add(kContextComm,
                   fmt::format("{} has {} entries, neither one nor one for each of the {} layers",
                               kContextComm, comm.size(), model.num_layers),
                   fmt::format("{}=[p2p]", kContextComm));
  const auto uses = [&](ContextComm kind) { return std::ranges::find(comm, kind) != comm.end(); };
  if (uses(ContextComm::kA2a)) check_context_heads(parallel, model, cp, violations);
  const std::vector<int64_t>& sizes = parallel.hierarchical_context_parallel_sizes;
  const std::string sizes_key = "parallel.hierarchical_context_parallel_sizes";
  if (!uses(ContextComm::kA2aP2p)) {
    if (!sizes.empty())
      violations.add(sizes_key,
                     fmt::format("{} has no effect without {}=[a2a+p2p]", sizes_key, kContextComm),
                     fmt::format("{}=[]", sizes_key));
    return;
  }
  if (sizes.size() != 2 || sizes[0] * sizes[1] != cp) {
    const int64_t inner = config::nearest_divisor(cp, 2);
    violations.add(sizes_key,
                   fmt::format("{}=[a2a+p2p] needs {} with two numbers whose product is {}",
                               kContextComm, sizes_key, size),
                   inner > 1 && inner < cp ? fmt::format("{}=[{},{}]", sizes_key, inner, cp / inner)
                                           : fmt::format("{}=[p2p]", kContextComm));
    return;
  }
  check_context_heads(parallel, model, sizes[0], violations);
}

} // namespace

void check_parallel(const ParallelConfig& parallel, const parallel::DdpConfig& ddp,
                    const models::ModelConfig& model, int world_size, const MicroBatch& micro_batch,
                    config::Violations& violations) {
  const int64_t tp = parallel.tensor_model_parallel_size,
                pp = parallel.pipeline_model_parallel_size, cp = parallel.context_parallel_size,
                model_ranks = tp * cp * pp;
  const std::string tp_key = "parallel.tensor_model_parallel_size",
                    pp_key = "parallel.pipeline_model_parallel_size";
  if (world_size % model_ranks != 0) {
    const std::string context = cp > 1 ? fmt::format(" x {}={}", kContextKey, cp) : "";
    violations.add(tp_key,
                   fmt::format("{}={}{} x {}={} needs a multiple of {} ranks, and the run has {}",
                               tp_key, tp, context, pp_key, pp, model_ranks, world_size),
                   fmt::format("--ranks {}", (world_size / model_ranks + 1) * model_ranks));
  }
  const auto divides = [&](const char* what, int64_t n) {
    if (n % tp == 0) return;
    violations.add(tp_key, fmt::format("{}={} does not divide {}={}", tp_key, tp, what, n),
                   fmt::format("{} in {{{}}}", tp_key, config::divisors(n)));
  };
  divides("model.num_attention_heads", model.num_attention_heads);
  divides("model.ffn_hidden_size", model.ffn_size());
  if (const int64_t kv = model.query_groups(); kv % tp != 0 && tp % kv != 0) {
    violations.add(
        tp_key,
        fmt::format("{}={} neither divides model.num_query_groups={} nor is a multiple of "
                    "it",
                    tp_key, tp, kv),
        fmt::format("{} in {{{}}}", tp_key, config::divisors(kv)));
  }
  const std::vector<int64_t> tokens = tokens_of_ranks(micro_batch, static_cast<int>(cp));
  const auto odd = std::ranges::find_if(tokens, [&](int64_t n) { return n % tp != 0; });
  if (parallel.sequence_parallel && odd != tokens.end()) {
    violations.add("parallel.sequence_parallel",
                   fmt::format("parallel.sequence_parallel cannot divide the {} tokens of a "
                               "microbatch{} evenly among {}={} ranks",
                               *odd, cp > 1 ? " on a context-parallel rank" : "", tp_key, tp),
                   "parallel.sequence_parallel=false");
  }
  try {
    plan_pipeline(parallel, model);
  } catch (const ConfigError& error) {
    violations.add(pp_key, error.what());
  }
  check_experts(parallel, ddp, model, world_size, violations);
  check_context(parallel, model, micro_batch, violations);
  const int dp = static_cast<int>(cp) * data_parallel_size(parallel, world_size);
  if (const int64_t n = ddp.num_distributed_optimizer_instances; dp % n != 0) {
    violations.add(
        "ddp.num_distributed_optimizer_instances",
        fmt::format("ddp.num_distributed_optimizer_instances={} does not divide the {} "
                    "data-parallel{} ranks",
                    n, dp, cp > 1 ? " and context-parallel" : ""),
        fmt::format("ddp.num_distributed_optimizer_instances in {{{}}}", config::divisors(dp)));
  }
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

parallel::ContextParallel context_parallel(const ParallelConfig& parallel,
                                           const comm::ParallelGroups& groups) {
  parallel::ContextParallel context{.comm = parallel.cp_comm_type};
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
  if (ddp == nullptr) return needed;
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
           .order = parallel.use_tp_pp_dp_mapping ? "tp-cp-ep-pp-dp" : "tp-cp-ep-dp-pp"},
          needed_groups(parallel, ddp, model, plan, world.size())};
}

RankModel make_model(const ModelOptions& options, const comm::ParallelGroups& groups,
                     const PipelinePlan& plan) {
  RankModel model;
  model.device = options.device;
  if (!plan.stages.empty()) model.places = {groups.pp(), plan.rank_of_stage, plan.stages};
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
  model.places = {groups.pp(), plan.rank_of_stage, plan.stages};
  model.model = make_part(options, groups, plan);
  limit_backward(*model.model, groups.pp());
  model.store =
      std::make_unique<parallel::DataParallel>(model.model->params(), options.device, ddp, groups);
  finish(*model.model, options);
  return model;
}

} // namespace pentatron::parallelize
