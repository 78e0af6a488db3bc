#include "pentatron/trainer/idle_keys.h"

#include <algorithm>
#include <string_view>

#include <fmt/format.h>

#include "pentatron/config/config.h"
#include "pentatron/parallelize/parallelize.h"
#include "pentatron/trainer/runtime.h"

namespace pentatron::trainer {

namespace {

/// A key that does nothing if `idle`, as `reason` says; a name that is empty or ends in "_" stands
/// for all keys of the section that begin so.
struct IdleKey {
  std::string_view section, name;
  bool idle = false;
  std::string reason;

  bool fits(std::string_view path) const {
    const std::string own =
        section.empty() ? std::string(name) : fmt::format("{}.{}", section, name);
    return name.empty() || name.ends_with('_') ? path.starts_with(own) : path == own;
  }
};

using IdleKeys = std::vector<IdleKey>;

IdleKeys of_optimizer(const Config& config) {
  using optim::OptimizerKind;
  const optim::OptimizerConfig& c = config.optimizer;
  const OptimizerKind kind = c.optimizer;
  const std::string other =
      fmt::format("optimizer.optimizer={} does not use it", config::to_string(kind));
  const bool muon = kind == OptimizerKind::kMuon || kind == OptimizerKind::kAdaptiveMuon;
  const bool adam = kind == OptimizerKind::kAdam || muon; // Muon leaves all but matrices to AdamW
  return {{"optimizer", "adam_", !adam, other},
          {"optimizer", "decoupled_weight_decay", !adam, other},
          {"optimizer", "exp_avg_sq_dtype", !adam, other},
          {"optimizer", "exp_avg_dtype", kind == OptimizerKind::kSgd && c.sgd_momentum == 0,
           "optimizer.sgd_momentum=0 needs no running mean"},
          {"optimizer", "exp_avg_dtype",
           kind == OptimizerKind::kAdafactor && c.adafactor_beta1 == 0,
           "optimizer.adafactor_beta1=0 needs no running mean"},
          {"optimizer", "sgd_", kind != OptimizerKind::kSgd, other},
          {"optimizer", "lion_", kind != OptimizerKind::kLion, other},
          {"optimizer", "muon_", !muon, other},
          {"optimizer", "muon_split_qkv", muon && config.model.multi_latent_attention,
           "model.multi_latent_attention=true has no fused projection of queries, keys and values"},
          {"optimizer", "adaptive_muon_", kind != OptimizerKind::kAdaptiveMuon, other},
          {"optimizer", "adafactor_", kind != OptimizerKind::kAdafactor, other},
          {"optimizer", "adafactor_min_scale", !c.adafactor_scale_parameter,
           "optimizer.adafactor_scale_parameter=false"},
          {"optimizer", "ema_decay",
           config.checkpoint.save.empty() && config.train.eval_weights != optim::WeightsKind::kEma,
           "checkpoint.save is empty, and train.eval_weights=model"}};
}

IdleKeys of_scheduler(const Config& config) {
  const optim::SchedulerConfig& c = config.scheduler;
  const optim::TrainLength length = train_length(config.train);
  const int64_t warmup = length.by_samples() ? c.lr_warmup_samples : c.lr_warmup_iters;
  const bool constant = c.lr_decay_style == optim::LrDecayStyle::kConstant;
  // A warmup may be a fraction of the decay, and has to be shorter.
  const bool no_decay = constant && !c.lr_warmup_fraction &&
                        warmup < (length.by_samples() ? length.samples : length.iters);
  // The default would be refused above the learning rate.
  const bool no_minimum = constant && optim::OptimizerConfig().min_lr <= config.optimizer.lr;
  const std::string style =
      fmt::format("scheduler.lr_decay_style={}", config::to_string(c.lr_decay_style));
  return {{"optimizer", "min_lr", no_minimum, style},
          {"scheduler", "lr_decay_iters", no_decay, style},
          {"scheduler", "lr_decay_samples", no_decay, style},
          {"scheduler", "lr_warmup_init", warmup == 0 && c.lr_warmup_fraction.value_or(0) == 0,
           "the learning rate has no warmup"},
          {"scheduler", "lr_wsd_", c.lr_decay_style != optim::LrDecayStyle::kWsd, style}};
}

IdleKeys of_model(const Config& config) {
  using models::RopeScalingType;
  // A model that was loaded says keys of its own.
  if (!config.model.preset.empty() || !config.checkpoint.load.empty()) return {};
  const bool rotates = config.model.position_embedding_type == models::PositionEmbedding::kRope;
  const std::string position = fmt::format("model.position_embedding_type={}",
                                           config::to_string(config.model.position_embedding_type));
  IdleKeys keys = {{"model", "rotary_", !rotates, position},
                   {"model", "rope_", !rotates, position}};
  for (const auto& [section, scaling] :
       {std::pair{"model.rope_scaling", config.model.rope_scaling.type},
        {"model.rope_local_scaling", config.model.rope_local_scaling.type}}) {
    const bool none = scaling == RopeScalingType::kNone, yarn = scaling == RopeScalingType::kYarn,
               llama3 = scaling == RopeScalingType::kLlama3,
               longrope = scaling == RopeScalingType::kLongRope;
    const std::string type = fmt::format("{}.type={}", section, config::to_string(scaling));
    for (const auto& [key, idle] :
         {std::pair{"factor", none},
          {"original_max_position_embeddings", !yarn && !llama3 && !longrope},
          {"beta_", !yarn},
          {"truncate", !yarn},
          {"attention_factor", !yarn && !longrope},
          {"mscale", !yarn},
          {"mscale_all_dim", !yarn},
          {"low_freq_factor", !llama3},
          {"high_freq_factor", !llama3},
          {"short_factor", !longrope},
          {"long_factor", !longrope}})
      keys.push_back({section, key, idle, type});
  }
  return keys;
}

IdleKeys of_data(const Config& config) {
  using data::DatasetType;
  const data::DatasetConfig& c = config.dataset;
  const std::string other =
      fmt::format("dataset.type={} does not use it", config::to_string(c.type));
  const bool sft = c.type == DatasetType::kSft, indexed = c.type == DatasetType::kIndexed;
  const bool tokens = indexed || !data::reads_text(c.type);
  // Text files and corpora of BERT and T5 cannot be told apart here.
  const bool own_files = indexed
                             ? !c.train_data_path.empty() || !c.per_split_data_args_path.empty()
                             : (sft || c.type == DatasetType::kClassification) && c.path.empty();
  const bool no_evaluation = config.train.eval_interval == 0;
  return {// A prompt may be a JSON object too.
          {"dataset", "text_key", tokens && config.logger.sample_prompts.empty(), other},
          {"dataset", "max_line_bytes", tokens, other},
          {"dataset", "on_bad_input", tokens, other},
          {"dataset", "num_workers", tokens || sft, other},
          {"dataset", "split", !data::reads_text(c.type), other},
          {"dataset", "split", own_files, "each part of the data has files of its own"},
          {"dataset", "fim_", c.fim_rate == 0, "dataset.fim_rate=0"},
          {"dataset", "full_validation", no_evaluation, "train.eval_interval=0"}};
}

IdleKeys of_training(const Config& config) {
  const TrainConfig& c = config.train;
  // Megatron's order takes the size of the test data from it.
  const bool all =
      config.dataset.full_validation && config.dataset.order != data::SampleOrder::kMegatron;
  return {
      {"train", "train_iters", c.train_samples.has_value(),
       fmt::format("train.train_samples={} replaces it", c.train_samples.value_or(0))},
      {"train", "eval_iters", c.eval_interval == 0, "train.eval_interval=0"},
      {"train", "eval_weights",
       c.eval_interval == 0 && config.eval.tasks.empty() && config.logger.sample_prompts.empty(),
       "train.eval_interval=0, and eval.tasks and logger.sample_prompts are empty"},
      {"train", "eval_iters", all, "dataset.full_validation=true"},
      {"train", "max_skipped_iterations", c.on_nan == OnNan::kStop, "train.on_nan=stop"},
      {"eval", "", config.eval.tasks.empty(), "eval.tasks is empty"},
      {"logger", "sample_", config.logger.sample_prompts.empty(), "logger.sample_prompts is empty"},
      {"logger", "run_name", config.logger.dir.empty(), "logger.dir is empty"},
      {"profiling", "trace_", !config.profiling.trace, "profiling.trace=false"},
      {"mixed_precision", "num_layers_at_", !config.mixed_precision.first_last_layers_bf16,
       "mixed_precision.first_last_layers_bf16=false"}};
}

IdleKeys of_checkpoints(const Config& config) {
  const CheckpointConfig& c = config.checkpoint;
  const bool saves = !c.save.empty(), model = foreign_model(c).has_value();
  const std::string unsaved = "checkpoint.save is empty";
  const std::string load =
      fmt::format("checkpoint.load={} is a model without the state of a run", c.load);
  const std::string all = "checkpoint.keep=0 keeps all checkpoints";
  return {{"checkpoint", "keep", !saves, unsaved},
          {"checkpoint", "on_error", !saves, unsaved},
          {"checkpoint", "async_save", !saves, unsaved},
          {"checkpoint", "staging_limit", !c.async_save, "checkpoint.async_save=false"},
          {"checkpoint", "node_local", !saves && c.load.empty(),
           "checkpoint.save and checkpoint.load are empty"},
          {"checkpoint", "node_local", !saves && model, fmt::format("{}, and {}", unsaved, load)},
          {"checkpoint", "keep_every", c.keep == 0, all},
          {"checkpoint", "keep_best", c.keep == 0, all},
          {"checkpoint", "keep_best_metric", c.keep_best == 0, "checkpoint.keep_best=0"},
          {"checkpoint", "finetune", model, load},
          {"checkpoint", "load_optimizer", model, load},
          {"checkpoint", "check_tokenizer", model, load}};
}

/// Whether keys and values of a layer go round a ring of ranks.
bool has_ring(const parallelize::ParallelConfig& c) {
  using parallel::ContextComm;
  const auto& sizes = c.hierarchical_context_parallel_sizes;
  return std::ranges::any_of(c.cp_comm_type, [&](ContextComm one) {
    return one == ContextComm::kP2p ||
           (one == ContextComm::kA2aP2p && (sizes.empty() || sizes.back() > 1));
  });
}

IdleKeys of_ranks(const Config& config, int world_size) {
  using parallelize::PipelineSchedule;
  const parallelize::ParallelConfig& c = config.parallel;
  const PipelineSchedule schedule = c.pipeline_schedule;
  const bool one_stage =
      c.pipeline_model_parallel_size == 1 &&
      (schedule == PipelineSchedule::kGpipe || schedule == PipelineSchedule::k1F1B ||
       schedule == PipelineSchedule::kZbH1 || schedule == PipelineSchedule::kZbH2);
  const bool one_replica =
      parallelize::data_parallel_size(c, world_size) * c.context_parallel_size == 1 &&
      (!config.model.num_moe_experts || parallelize::expert_data_size(c, world_size) == 1);
  const bool wide = config.dtype == Precision::kFp32 || config.dtype == Precision::kFp64;
  // Recipes in fp16 set ddp.grad_reduce_in_fp32=false.
  const bool of_recipe =
      config.mixed_precision.recipe != PrecisionRecipe::kNone && config.dtype == Precision::kFp16;
  const std::string pipeline = "there is only one pipeline rank",
                    replica = "there is only one data-parallel rank";
  return {
      {"parallel", "pipeline_schedule", one_stage, pipeline},
      {"parallel", "pipeline_balance", one_stage, pipeline},
      {"parallel", "account_for_embedding_in_pipeline_split", one_stage, pipeline},
      {"parallel", "account_for_loss_in_pipeline_split", one_stage, pipeline},
      {"parallel", "use_tp_pp_dp_mapping", c.pipeline_model_parallel_size == 1, pipeline},
      {"dist", "gpu_messages", world_size == 1 || on_cpu(config.device),
       world_size == 1 ? "there is only one rank" : "ranks run on the CPU"},
      {"", "deterministic", on_cpu(config.device), "runs on a CPU always give the same bits"},
      {"", "deterministic", wide,
       fmt::format("dtype={} has no faster kernels", config::to_string(config.dtype))},
      {"comm_overlap", "tp", c.tensor_model_parallel_size == 1,
       "there is only one tensor-parallel rank"},
      {"comm_overlap", "pp", c.pipeline_model_parallel_size == 1, pipeline},
      {"comm_overlap", "cp", c.context_parallel_size == 1,
       "there is only one context-parallel rank"},
      {"comm_overlap", "cp", !has_ring(c), "parallel.cp_comm_type has no ring"},
      {"ddp", "overlap_", one_replica, replica},
      {"ddp", "grad_reduce_in_fp32", one_replica && !of_recipe, replica},
      {"ddp", "grad_reduce_in_fp32", wide,
       fmt::format("dtype={} is the data type of all gradients", config::to_string(config.dtype))}};
}

} // namespace

std::vector<std::string> idle_keys(const Config& config, int world_size) {
  IdleKeys table;
  for (const IdleKeys& rows :
       {of_optimizer(config), of_scheduler(config), of_model(config), of_data(config),
        of_training(config), of_checkpoints(config), of_ranks(config, world_size)})
    table.insert(table.end(), rows.begin(), rows.end());
  std::vector<std::string> all;
  for (const config::Difference& d : config::diff(Config(), config)) {
    const auto found = std::ranges::find_if(
        table, [&](const IdleKey& key) { return key.idle && key.fits(d.path); });
    if (found != table.end())
      all.push_back(fmt::format("{}={} has no effect: {}\n  try: remove {}", d.path, d.after,
                                found->reason, d.path));
  }
  return all;
}

} // namespace pentatron::trainer
