#include "pentatron/trainer/notices.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "pentatron/config/config.h"
#include "pentatron/parallelize/parallelize.h"
#include "pentatron/trainer/idle_keys.h"
#include "pentatron/trainer/precision.h"
#include "pentatron/trainer/recompute.h"
#include "pentatron/trainer/runtime.h"

namespace pentatron::trainer {

namespace {

/// Layers, of a model whose products in low precision are all left out; 0: some are not.
int64_t layers_left_out(const Config& config) {
  if (!config.mixed_precision.low_precision()) return 0;
  const std::vector<bool> quantised = quantised_segments(config);
  int64_t layers = 0, at = 0;
  for (const models::SegmentSpec& segment : models::model_spec(config.model).segments) {
    if (quantised[static_cast<size_t>(at++)] && segment.recomputed) return 0;
    layers += segment.recomputed;
  }
  return layers;
}

/// Whether FP4 without its recipe computes layers that the recipe leaves out, and not these alone.
bool lacks_layers_of_recipe(const Config& config) {
  const MixedPrecisionConfig& precision = config.mixed_precision;
  if (precision.fp4 == Fp4Format::kNone || precision.recipe != PrecisionRecipe::kNone ||
      precision.first_last_layers_bf16)
    return false;
  Config as_in_recipe = config;
  as_in_recipe.mixed_precision.first_last_layers_bf16 = true;
  return layers_left_out(as_in_recipe) == 0;
}

/// Of keys that count layers, and count more than there are.
std::vector<std::string> notices_of_layers(const Config& config) {
  std::vector<std::string> all;
  const MixedPrecisionConfig& precision = config.mixed_precision;
  if (lacks_layers_of_recipe(config))
    all.push_back(fmt::format(
        "mixed_precision.fp4={} also computes the first and the last layer in FP4, which "
        "mixed_precision.recipe=bf16_with_nvfp4_mixed computes in bf16\n"
        "  try: mixed_precision.first_last_layers_bf16=true",
        config::to_string(precision.fp4)));
  if (const int64_t layers = layers_left_out(config); layers > 0) {
    const std::string key = precision.fp4 != Fp4Format::kNone
                                ? fmt::format("fp4={}", config::to_string(precision.fp4))
                                : fmt::format("fp8={}", config::to_string(precision.fp8));
    all.push_back(fmt::format(
        "mixed_precision.{} has no effect: mixed_precision.first_last_layers_bf16=true computes {} "
        "in {}\n  try: mixed_precision.first_last_layers_bf16=false",
        key, layers == 1 ? "the only layer" : fmt::format("all {} layers", layers),
        config::to_string(config.dtype)));
  }
  const auto more_than_a_stage = [&](const char* key, int64_t given) {
    if (given <= 1) return;
    if (const int64_t most = std::max<int64_t>(1, most_layers_of_a_stage(config)); given > most)
      all.push_back(
          fmt::format("{0}={1} has the same effect as {0}={2}: no pipeline stage has more "
                      "layers\n  try: {0}={2}",
                      key, given, most));
  };
  if (config.offload.activations)
    more_than_a_stage("offload.num_layers", config.offload.num_layers);
  if (config.train.recompute == Recompute::kFull)
    more_than_a_stage("train.recompute_num_layers", config.train.recompute_num_layers);
  return all;
}

} // namespace

std::vector<std::string> notices(const Config& config, int world_size, bool has_validation,
                                 const kernels::CpuFeatures& cpu) {
  std::vector<std::string> all;
  if (config.dtype == Precision::kBf16 && on_cpu(config.device) && !cpu.avx512_bf16 &&
      !cpu.amx_bf16)
    all.emplace_back("dtype=bf16 saves memory but no time here: the processor has no bf16 "
                     "instructions\n  try: dtype=fp32");
  for (std::string& key : idle_keys(config, world_size)) all.push_back(std::move(key));
  const auto add = [&](std::string sentence) { all.push_back(std::move(sentence)); };
  const bool splits =
      config.dataset.train_data_path.empty() && config.dataset.type != data::DatasetType::kBatches;
  if (config.train.eval_interval > 0 && !has_validation)
    add(fmt::format("train.eval_interval={} has no effect: there are no validation samples\n"
                    "  try: {}",
                    config.train.eval_interval,
                    splits ? "dataset.split=95,5,0" : "dataset.valid_data_path=FILE"));
  const CheckpointConfig& c = config.checkpoint;
  if (c.keep_best > 0 && c.keep > 0 && c.keep_best_metric != kTrainingLoss && !has_validation)
    add(fmt::format("checkpoint.keep_best={} has no effect: it compares evaluation metrics, but "
                    "there are no validation samples\n  try: checkpoint.keep_best_metric=loss",
                    c.keep_best));
  if (c.save.empty() && total_iterations(config.train) > 0)
    add("the trained model will not be saved: checkpoint.save is empty\n"
        "  try: checkpoint.save=checkpoints");
  if (!c.save.empty() && !loads_own(c) && total_iterations(config.train) == 0)
    add(fmt::format("checkpoint.save={} has no effect: the run has no iterations, so it saves "
                    "nothing\n  try: remove checkpoint.save",
                    c.save));
  const models::ModelConfig& model = config.model;
  if (model.num_moe_experts && models::model_spec(model).expert_layers.empty())
    add(fmt::format("model.num_moe_experts={} has no effect: model.moe_layer_freq={} leaves no "
                    "layer with experts\n  try: model.moe_layer_freq=1",
                    *model.num_moe_experts, model.moe_layer_freq));
  if (model.num_moe_experts.value_or(1) > 1 && model.moe_router_topk == 1 &&
      model.moe_router_score_function == models::RouterScoreFunction::kSoftmax &&
      !model.moe_router_pre_softmax)
    add("model.moe_router_topk=1: the softmax of one selected expert is always 1, so the loss does "
        "not train the router\n  try: model.moe_router_pre_softmax=true");
  if (model.num_moe_experts.value_or(1) > 1 && model.moe_router_topk == 1 &&
      model.normalizes_topk())
    add("model.moe_router_norm_topk_prob=true with model.moe_router_topk=1: the score of one "
        "selected "
        "expert divided by itself is always 1, so the loss does not train the router\n  try: "
        "model.moe_router_norm_topk_prob=false");
  const int dp = parallelize::data_parallel_size(config.parallel, world_size);
  const int64_t cp = config.parallel.context_parallel_size;
  if (config.ddp.zero_stage > 0 && dp * cp == 1)
    add(fmt::format("ddp.zero_stage={} has no effect: there is only one data-parallel rank\n  try: "
                    "ddp.zero_stage=0",
                    config.ddp.zero_stage));
  if (dp * cp == 1 && config.ddp.bucket_size != parallel::DdpConfig().bucket_size)
    add(fmt::format(
        "ddp.bucket_size={} has no effect: there is only one data-parallel rank\n  try: "
        "remove ddp.bucket_size",
        config.ddp.bucket_size));
  if (config.parallel.sequence_parallel && config.parallel.tensor_model_parallel_size == 1)
    add("parallel.sequence_parallel=true has no effect: there is only one tensor-parallel rank\n  "
        "try: parallel.sequence_parallel=false");
  if (config.parallel.tensor_model_parallel_size == 1 &&
      (config.optimizer.optimizer == optim::OptimizerKind::kMuon ||
       config.optimizer.optimizer == optim::OptimizerKind::kAdaptiveMuon) &&
      config.optimizer.muon_tp_mode == optim::MuonTensorMode::kBlockwise)
    add("optimizer.muon_tp_mode=blockwise has no effect: there is only one tensor-parallel rank\n  "
        "try: optimizer.muon_tp_mode=exact");
  if (cp == 1 && config.parallel.cp_comm_type != parallelize::ParallelConfig().cp_comm_type)
    add("parallel.cp_comm_type has no effect: there is only one context-parallel rank\n  try: "
        "parallel.cp_comm_type=[p2p]");
  if (cp == 1 && !config.parallel.hierarchical_context_parallel_sizes.empty())
    add("parallel.hierarchical_context_parallel_sizes has no effect: there is only one "
        "context-parallel rank\n  try: parallel.hierarchical_context_parallel_sizes=[]");
  for (std::string& sentence : notices_of_layers(config)) add(std::move(sentence));
  const MixedPrecisionConfig& precision = config.mixed_precision;
  if (precision.fp8 == Fp8Format::kNone && precision.fp8_recipe != Fp8Recipe::kTensorwise)
    add(fmt::format("mixed_precision.fp8_recipe={} has no effect: no matrix product is computed in "
                    "FP8\n  try: mixed_precision.fp8=e4m3",
                    config::to_string(precision.fp8_recipe)));
  if (!precision.low_precision() && precision.first_last_layers_bf16)
    add("mixed_precision.first_last_layers_bf16=true has no effect: no matrix product is computed "
        "in FP8 or FP4\n  try: mixed_precision.fp8=e4m3");
  if (precision.fp8 == Fp8Format::kNone || precision.fp8_recipe != Fp8Recipe::kDelayed) {
    const MixedPrecisionConfig none;
    const char* const key =
        precision.fp8_margin != none.fp8_margin                         ? "fp8_margin"
        : precision.fp8_amax_history_len != none.fp8_amax_history_len   ? "fp8_amax_history_len"
        : precision.fp8_amax_compute_algo != none.fp8_amax_compute_algo ? "fp8_amax_compute_algo"
                                                                        : nullptr;
    if (key != nullptr && precision.fp8 != Fp8Format::kNone)
      add(fmt::format("mixed_precision.{} has no effect: mixed_precision.fp8_recipe={} keeps no "
                      "history\n  try: mixed_precision.fp8_recipe=delayed",
                      key, config::to_string(precision.fp8_recipe)));
    else if (key != nullptr)
      add(fmt::format("mixed_precision.{} has no effect: no matrix product is computed in FP8\n  "
                      "try: mixed_precision.fp8=e4m3 mixed_precision.fp8_recipe=delayed",
                      key));
  }
  const auto without_effect = [&](const char* key, bool changed) {
    if (changed && (precision.loss_scale || config.dtype != Precision::kFp16))
      add(fmt::format("mixed_precision.{} has no effect: {}\n  try: remove mixed_precision.{}", key,
                      precision.loss_scale ? "mixed_precision.loss_scale is a constant"
                                           : fmt::format("dtype={} has no dynamic loss scale",
                                                         config::to_string(config.dtype)),
                      key));
  };
  const MixedPrecisionConfig usual;
  without_effect("initial_loss_scale", precision.initial_loss_scale != usual.initial_loss_scale);
  without_effect("min_loss_scale", precision.min_loss_scale != usual.min_loss_scale);
  without_effect("loss_scale_window", precision.loss_scale_window != usual.loss_scale_window);
  without_effect("hysteresis", precision.hysteresis != usual.hysteresis);
  const bool experts_travel =
      model.num_moe_experts && parallelize::expert_tensor_size(config.parallel) *
                                       config.parallel.expert_model_parallel_size >
                                   1;
  if (config.parallel.moe_token_dispatcher_type !=
          parallelize::ParallelConfig().moe_token_dispatcher_type &&
      !experts_travel)
    add("parallel.moe_token_dispatcher_type has no effect: experts are not divided among ranks\n  "
        "try: parallel.moe_token_dispatcher_type=alltoall");
  if (config.comm_overlap.moe_shared_expert &&
      (!experts_travel || !model.moe_shared_expert_intermediate_size))
    add(fmt::format("comm_overlap.moe_shared_expert=true has no effect: {}\n"
                    "  try: comm_overlap.moe_shared_expert=false",
                    experts_travel ? "the model has no shared experts"
                                   : "experts are not divided among ranks"));
  if (config.comm_overlap.moe_expert_parallel) {
    const int64_t two_microbatches = 2 * config.train.micro_batch_size *
                                     parallelize::data_parallel_size(config.parallel, world_size);
    if (!experts_travel)
      add("comm_overlap.moe_expert_parallel=true has no effect: experts are not divided among "
          "ranks\n  try: comm_overlap.moe_expert_parallel=false");
    else if (config.parallel.pipeline_schedule != parallelize::PipelineSchedule::kDualPipeV)
      add(fmt::format("comm_overlap.moe_expert_parallel=true has no effect: "
                      "parallel.pipeline_schedule={} has no pairs of passes\n"
                      "  try: parallel.pipeline_schedule=dualpipe_v",
                      config::to_string(config.parallel.pipeline_schedule)));
    else if (config.train.global_batch_size < two_microbatches)
      add(fmt::format("comm_overlap.moe_expert_parallel=true has no effect: a step has one "
                      "microbatch\n  try: train.global_batch_size={}",
                      two_microbatches));
  }
  if (const int64_t steps = config.logger.dead_expert_steps;
      !model.num_moe_experts && steps != LoggerConfig().dead_expert_steps)
    add(fmt::format("logger.dead_expert_steps={} has no effect: the model has no experts\n"
                    "  try: remove logger.dead_expert_steps",
                    steps));
  return all;
}

std::string keys_of_one_layout(const Config& config) {
  using models::LoadBalancing;
  const models::ModelConfig& model = config.model;
  std::vector<std::string> keys;
  if (const std::string precision = precision_of_one_layout(config); !precision.empty())
    keys.push_back(precision);
  if (config.optimizer.optimizer == optim::OptimizerKind::kMuon &&
      config.optimizer.muon_tp_mode == optim::MuonTensorMode::kBlockwise &&
      config.parallel.tensor_model_parallel_size > 1)
    keys.emplace_back("optimizer.muon_tp_mode=blockwise");
  if (!model.num_moe_experts) return fmt::format("{}", fmt::join(keys, " and "));
  for (const LoadBalancing type : {LoadBalancing::kSinkhorn, LoadBalancing::kMicrobatch})
    if (model.balanced_by(type))
      keys.push_back(
          fmt::format("model.moe_router_load_balancing_type={}", config::to_string(type)));
  if (model.moe_expert_capacity_factor)
    keys.push_back(
        fmt::format("model.moe_expert_capacity_factor={:g}", *model.moe_expert_capacity_factor));
  return fmt::format("{}", fmt::join(keys, " and "));
}

} // namespace pentatron::trainer
