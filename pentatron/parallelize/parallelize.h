/// Builds the stages, model and storage of a rank from a configuration and the rank's groups. The
/// only place that knows the order of these steps.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "pentatron/comm/parallel_groups.h"
#include "pentatron/models/model.h"
#include "pentatron/nn/param_store.h"
#include "pentatron/parallel/ddp/data_parallel.h"
#include "pentatron/parallel/pipeline/runtime.h"
#include "pentatron/parallel/pipeline/schedule/schedule.h"
#include "pentatron/parallel/pipeline/schedule/stages.h"
#include "pentatron/parallelize/parallel_config.h"

namespace pentatron::parallelize {

/// How stages lie on pipeline ranks, and what each holds.
struct PipelinePlan {
  std::string schedule = "1f1b";
  int virtual_stages = 0; ///< as make_schedule() takes it
  std::vector<int> rank_of_stage = {0};
  std::vector<SegmentRange> stages;
  int prefetch = 1; ///< of receives, as pipeline::lower() takes it

  /// The pipeline ranks of these segments, each once, in the order of the segments.
  std::vector<int> ranks_of(const std::vector<int64_t>& segments) const;
  /// The stages of a rank, as the model takes them.
  std::vector<SegmentRange> stages_of(int rank) const;
  /// Not lowered.
  pipeline::Schedule make(int num_microbatches) const;
};

/// Throws ConfigError where the pipeline cannot be made of this model. For pipeline_balance=cost:
/// `lengths`, the tokens of a sample in each stream (empty: one each), and `targets`, the share of
/// the last stream's tokens that have a target.
PipelinePlan plan_pipeline(const ParallelConfig& parallel, const models::ModelConfig& model,
                           std::vector<int64_t> lengths = {}, double targets = 1);

/// The model's segments, as the assignment of stages sees them.
std::vector<pipeline::StageSegment> stage_segments(const models::ModelConfig& model);

/// The samples of a microbatch.
struct MicroBatch {
  int64_t samples = 1;
  std::vector<int64_t> lengths; ///< tokens of a sample, in each stream; empty: not known
};
/// Everything about sizes that a run of `world_size` ranks would stumble over, in one pass, of
/// sections that keep their own rules.
void check_parallel(const ParallelConfig& parallel, const parallel::DdpConfig& ddp,
                    const models::ModelConfig& model, int world_size, const MicroBatch& micro_batch,
                    config::Violations& violations);

/// Data-parallel ranks of a world; at least 1.
int data_parallel_size(const ParallelConfig& parallel, int world_size);
/// Tensor ranks of an expert.
int expert_tensor_size(const ParallelConfig& parallel);
/// The order of axes in which ranks are numbered.
const char* rank_order(const ParallelConfig& parallel);
/// Ranks that hold the same experts.
int expert_data_size(const ParallelConfig& parallel, int world_size);

/// The groups that a run of `world_size` ranks uses, in the order in which they are made. `ddp`: of
/// training; null: the model alone.
std::vector<comm::NeededGroup> needed_groups(const ParallelConfig& parallel,
                                             const parallel::DdpConfig* ddp,
                                             const models::ModelConfig& model,
                                             const PipelinePlan& plan, int world_size);
/// Makes these. Collective over the world.
comm::ParallelGroups make_groups(const comm::Group& world, const ParallelConfig& parallel,
                                 const parallel::DdpConfig* ddp, const models::ModelConfig& model,
                                 const PipelinePlan& plan);

/// The context-parallel axis as models take it. `overlap`: see ContextParallel.
parallel::ContextParallel context_parallel(const ParallelConfig& parallel, bool overlap,
                                           const comm::ParallelGroups& groups);

struct ModelOptions {
  models::ModelConfig config;
  models::ModelBuild build; ///< over groups.tp(); its stages follow from the plan
  at::Device device = at::kCPU;
  int64_t max_sequence = 0; ///< in tokens, of every stream
  bool gradients = true;    ///< of make_model
  /// Sees the parameters before they have storage: sets their families, or, of make_model without
  /// gradients, gives them values that lie elsewhere.
  std::function<void(nn::ParamList&)> prepare;
};

/// Where the stages of a model lie.
struct StagePlaces {
  comm::Group pp;
  pipeline::Channels channels;          ///< of `pp`
  std::vector<int> rank_of_stage = {0}; ///< in `pp`
  std::vector<SegmentRange> stages;     ///< none: the whole model in one
};

/// What runs a model: its layers, their storage, where they are.
struct ModelView {
  models::Model& model;
  nn::ParamStore& store;
  at::Device device;
  StagePlaces places;
};

/// A rank's part of a model with storage on its device; values are not yet set.
template <class Store> struct StoredModel {
  std::unique_ptr<models::Model> model;
  std::unique_ptr<Store> store;
  at::Device device = at::kCPU;
  StagePlaces places;
  /// Of overlapped pairs of passes; null: one pass runs after the other.
  std::shared_ptr<nn::Turns> turns = nullptr;

  /*implicit*/ operator ModelView() { return {*model, *store, device, places}; }
};
using RankModel = StoredModel<nn::ResidentStore>;
using TrainingModel = StoredModel<parallel::DataParallel>;

/// The stages of this rank as a pipeline runs them, and what crosses between them.
std::vector<const nn::Chunk*> chunks_of(const models::Model& model);
pipeline::Boundaries boundaries_of(const models::Model& model, const StagePlaces& places,
                                   at::Device device);

/// This rank's stages, for evaluation and generation; a plan without stages: the whole model on
/// each tensor rank.
RankModel make_model(const ModelOptions& options, const comm::ParallelGroups& groups,
                     const PipelinePlan& plan = {});

/// This rank's stages, for training.
TrainingModel make_training_model(const ModelOptions& options, const PipelinePlan& plan,
                                  const parallel::DdpConfig& ddp,
                                  const comm::ParallelGroups& groups);

} // namespace pentatron::parallelize
