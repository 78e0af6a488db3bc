#include "pentatron/trainer/notices.h"

#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "pentatron/config/config.h"
#include "pentatron/parallelize/parallelize.h"
#include "pentatron/trainer/precision.h"

namespace pentatron::trainer {

namespace {

/// Keys of a section that begin so do nothing, as `reason` says.
struct IdleKeys {
  std::string_view section, begin;
  bool idle = false;
  std::string reason;
};

/// Keys of features that the run does not use.
std::vector<std::string> idle_keys(const Config& config) {
  using optim::OptimizerKind;
  const OptimizerKind kind = config.optimizer.optimizer;
  const std::string optimizer =
      fmt::format("optimizer.optimizer={} does not use it", config::to_string(kind));
  const bool muon = kind == OptimizerKind::kMuon || kind == OptimizerKind::kAdaptiveMuon;
  // A model that was loaded says keys of its own.
  const bool own = config.model.preset.empty() && config.checkpoint.load.empty();
  const bool rotates = config.model.position_embedding_type == models::PositionEmbedding::kRope;
  const std::string position = fmt::format("model.position_embedding_type={}",
                                           config::to_string(config.model.position_embedding_type));
  const models::RopeScalingType scaling = config.model.rope_scaling.type;
  const bool yarn = scaling == models::RopeScalingType::kYarn,
             llama3 = scaling == models::RopeScalingType::kLlama3;
  const std::string rope_scaling =
      fmt::format("model.rope_scaling.type={}", config::to_string(scaling));
  const std::vector<IdleKeys> table = {
      {"optimizer", "sgd_", kind != OptimizerKind::kSgd, optimizer},
      {"optimizer", "lion_", kind != OptimizerKind::kLion, optimizer},
      {"optimizer", "muon_", !muon, optimizer},
      {"optimizer", "adaptive_muon_", kind != OptimizerKind::kAdaptiveMuon, optimizer},
      {"optimizer", "adafactor_", kind != OptimizerKind::kAdafactor, optimizer},
      {"scheduler", "lr_wsd_", config.scheduler.lr_decay_style != optim::LrDecayStyle::kWsd,
       fmt::format("scheduler.lr_decay_style={}",
                   config::to_string(config.scheduler.lr_decay_style))},
      {"logger", "sample_", config.logger.sample_prompts.empty(), "logger.sample_prompts is empty"},
      {"logger", "run_name", config.logger.dir.empty(), "logger.dir is empty"},
      {"profiling", "trace_", !config.profiling.trace, "profiling.trace=false"},
      {"train", "eval_iters", config.train.eval_interval == 0, "train.eval_interval=0"},
      {"dataset", "full_validation", config.train.eval_interval == 0, "train.eval_interval=0"},
      {"model", "rotary_", own && !rotates, position},
      {"model", "rope_", own && !rotates, position},
      {"model", "rope_scaling.beta_", own && !yarn, rope_scaling},
      {"model", "rope_scaling.truncate", own && !yarn, rope_scaling},
      {"model", "rope_scaling.attention_factor", own && !yarn, rope_scaling},
      {"model", "rope_scaling.mscale", own && !yarn, rope_scaling},
      {"model", "rope_scaling.low_freq_factor", own && !llama3, rope_scaling},
      {"model", "rope_scaling.high_freq_factor", own && !llama3, rope_scaling},
      {"eval", "", config.eval.tasks.empty(), "eval.tasks is empty"},
      {"checkpoint", "async_save", config.checkpoint.save.empty(), "checkpoint.save is empty"},
      {"checkpoint", "staging_limit", !config.checkpoint.async_save, "checkpoint.async_save=false"},
      {"mixed_precision", "num_layers_at_", !config.mixed_precision.first_last_layers_bf16,
       "mixed_precision.first_last_layers_bf16=false"},
      {"dataset", "fim_", config.dataset.fim_rate == 0, "dataset.fim_rate=0"},
      {"parallel", "pipeline_schedule", config.parallel.pipeline_model_parallel_size == 1,
       "there is only one pipeline rank"},
      {"comm_overlap", "tp", config.parallel.tensor_model_parallel_size == 1,
       "there is only one tensor-parallel rank"}};
  std::vector<std::string> all;
  for (const config::Difference& d : config::diff(Config(), config))
    for (const IdleKeys& keys : table)
      if (keys.idle && d.path.starts_with(fmt::format("{}.{}", keys.section, keys.begin)))
        all.push_back(fmt::format("{}={} has no effect: {}\n  try: remove {}", d.path, d.after,
                                  keys.reason, d.path));
  return all;
}

} // namespace

std::vector<std::string> notices(const Config& config, int world_size, bool has_validation) {
  std::vector<std::string> all = idle_keys(config);
  const auto add = [&](std::string sentence) { all.push_back(std::move(sentence)); };
  const bool splits =
      config.dataset.train_data_path.empty() && config.dataset.type != data::DatasetType::kBatches;
  if (config.train.eval_interval > 0 && !has_validation)
    add(fmt::format("train.eval_interval={} has no effect: there are no validation samples\n"
                    "  try: {}",
                    config.train.eval_interval,
                    splits ? "dataset.split=95,5,0" : "dataset.valid_data_path=FILE"));
  const CheckpointConfig& c = config.checkpoint;
  if (c.keep_best > 0 && c.keep_best_metric != kTrainingLoss && !has_validation)
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
  const int dp = parallelize::data_parallel_size(config.parallel, world_size);
  const int64_t cp = config.parallel.context_parallel_size;
  if (config.ddp.zero_stage > 0 && dp * cp == 1)
    add(fmt::format("ddp.zero_stage={} has no effect: there is only one data-parallel rank\n  try: "
                    "ddp.zero_stage=0",
                    config.ddp.zero_stage));
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
