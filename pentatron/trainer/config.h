/// The configuration of a run: one struct with one section per component.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "pentatron/checkpoint/adapters/adapter_settings.h"
#include "pentatron/checkpoint/sharded/manifest.h"
#include "pentatron/checkpoint/strictness.h"
#include "pentatron/comm/dist_config.h"
#include "pentatron/config/config.h"
#include "pentatron/data/config.h"
#include "pentatron/evaluation/config.h"
#include "pentatron/models/model_config.h"
#include "pentatron/nn/recomputed_parts.h"
#include "pentatron/optim/batch_size_schedule.h"
#include "pentatron/optim/lr_schedule.h"
#include "pentatron/optim/optimizer_config.h"
#include "pentatron/parallel/ddp/ddp_config.h"
#include "pentatron/parallelize/parallel_config.h"
#include "pentatron/trainer/logger_config.h"
#include "pentatron/trainer/offload_config.h"
#include "pentatron/trainer/precision_config.h"
#include "pentatron/trainer/profiling_config.h"

namespace pentatron::parallelize {
struct PipelinePlan;
}

namespace pentatron::trainer {

enum class DeviceKind : uint8_t { kAuto, kCpu, kCuda };
constexpr auto enum_names(DeviceKind) {
  return std::array{config::name(DeviceKind::kAuto, "auto"), config::name(DeviceKind::kCpu, "cpu"),
                    config::name(DeviceKind::kCuda, "cuda")};
}

enum class Precision : uint8_t { kFp64, kFp32, kBf16, kFp16 };
constexpr auto enum_names(Precision) {
  return std::array{config::name(Precision::kFp64, "fp64"), config::name(Precision::kFp32, "fp32"),
                    config::name(Precision::kBf16, "bf16"), config::name(Precision::kFp16, "fp16")};
}

enum class KernelChoice : uint8_t { kAuto, kOrder };
constexpr auto enum_names(KernelChoice) {
  return std::array{config::name(KernelChoice::kAuto, "auto"),
                    config::name(KernelChoice::kOrder, "order")};
}

enum class Recompute : uint8_t { kNone, kSelective, kFull, kAuto };
constexpr auto enum_names(Recompute) {
  return std::array{config::name(Recompute::kNone, "none"),
                    config::name(Recompute::kSelective, "selective"),
                    config::name(Recompute::kFull, "full"), config::name(Recompute::kAuto, "auto")};
}

enum class RecomputeMethod : uint8_t { kUniform, kBlock };
constexpr auto enum_names(RecomputeMethod) {
  return std::array{config::name(RecomputeMethod::kUniform, "uniform"),
                    config::name(RecomputeMethod::kBlock, "block")};
}

enum class OnNan : uint8_t { kStop, kSkip };
constexpr auto enum_names(OnNan) {
  return std::array{config::name(OnNan::kStop, "stop"), config::name(OnNan::kSkip, "skip")};
}

enum class OnSaveError : uint8_t { kStop, kContinue };
constexpr auto enum_names(OnSaveError) {
  return std::array{config::name(OnSaveError::kStop, "stop"),
                    config::name(OnSaveError::kContinue, "continue")};
}

/// Names of CheckpointConfig::keep_best_metric; others are "validation_" and a figure.
inline constexpr const char* kTrainingLoss = "loss";
inline constexpr const char* kValidationLoss = "validation_loss";

struct TrainConfig {
  int64_t train_iters = 200;
  std::optional<int64_t> train_samples;
  int64_t seq_length = 256;
  int64_t micro_batch_size = 4;
  int64_t global_batch_size = 8;
  std::string step_batch_size_schedule;
  std::vector<int64_t> rampup_batch_size;
  bool remove_padding = false;
  Recompute recompute = Recompute::kNone;
  std::vector<nn::Part> recompute_modules = {nn::Part::kMlpActivation, nn::Part::kMoeActivation};
  RecomputeMethod recompute_method = RecomputeMethod::kUniform;
  int64_t recompute_num_layers = 1;
  double recompute_memory_limit = 0;
  std::vector<std::string> freeze;
  int64_t eval_interval = 0;
  int64_t eval_iters = 10;
  optim::WeightsKind eval_weights = optim::WeightsKind::kModel;
  OnNan on_nan = OnNan::kStop;
  int64_t max_skipped_iterations = 10;
  int64_t exit_interval = 0;
  double exit_duration_in_mins = 0;
  int64_t num_threads = 0;
  bool cuda_graphs = false;
  bool check_memory = true;

  static constexpr auto fields() {
    using C = TrainConfig;
    using config::field;
    return std::tuple{
        field("train_iters", &C::train_iters, "number of training iterations (optimizer steps)")
            .range(0, 1e12)
            .unit("iterations"),
        field("train_samples", &C::train_samples,
              "length of the run in samples; replaces train_iters")
            .range(1, 1e15)
            .unit("samples"),
        field("seq_length", &C::seq_length, "number of tokens in each sample")
            .size()
            .unit("tokens")
            .on_resume(config::OnResume::kData),
        field("micro_batch_size", &C::micro_batch_size,
              "number of samples in one forward pass on one rank")
            .size()
            .unit("samples"),
        field("global_batch_size", &C::global_batch_size,
              "number of samples in one optimizer step, over all ranks")
            .size()
            .unit("samples"),
        field("step_batch_size_schedule", &C::step_batch_size_schedule,
              "global batch sizes by number of consumed tokens, such as \"0:768 250B:1536\"; "
              "replaces global_batch_size"),
        field("rampup_batch_size", &C::rampup_batch_size,
              "batch size ramp-up: [start, increment, samples] grows the global batch size from "
              "start to global_batch_size over that many samples")
            .positive(),
        field("remove_padding", &C::remove_padding,
              "skip computation for the padding at the end of samples; results do not change; for "
              "dataset.type bert, t5, classification, sft and batches"),
        field("recompute", &C::recompute,
              "activation recomputation in the backward pass, which saves memory and takes time; "
              "selective: recompute the parts of layers in recompute_modules; full: recompute "
              "whole layers; auto: the fastest choice that fits in recompute_memory_limit"),
        field("recompute_modules", &C::recompute_modules,
              "recompute=selective: parts of layers to recompute; mlp_act, moe_act (activation "
              "functions) and layernorm take little time, core_attn, mla_up_proj and "
              "shared_experts take more, mlp and moe take most"),
        field("recompute_method", &C::recompute_method,
              "recompute=full: which layers to recompute; uniform: all layers, in groups of "
              "recompute_num_layers, storing only the input of each group; block: the first "
              "recompute_num_layers layers of each pipeline stage"),
        field("recompute_num_layers", &C::recompute_num_layers,
              "recompute=full: number of layers in each group (uniform), or number of layers to "
              "recompute in each pipeline stage (block)")
            .size()
            .unit("layers"),
        field("recompute_memory_limit", &C::recompute_memory_limit,
              "recompute=auto: maximum memory of one rank; 0: an equal share of the machine's free "
              "memory")
            .min(0)
            .unit("MiB"),
        field("freeze", &C::freeze,
              "names of parameters that are not trained, with wildcards, such as [\"embedding.*\", "
              "\"layers.[0-3].*\"]; they need no memory for gradients and optimizer state"),
        field("eval_interval", &C::eval_interval,
              "number of iterations between evaluations on the validation data; 0: no evaluation")
            .min(0)
            .unit("iterations"),
        field("eval_weights", &C::eval_weights,
              "weights used by evaluation, eval.tasks and logger.sample_prompts during training; "
              "model: the trained weights; ema: their running mean (optimizer.ema_decay)")
            .on_resume(config::OnResume::kIgnored),
        field("eval_iters", &C::eval_iters, "number of global batches in each evaluation")
            .positive(),
        field("on_nan", &C::on_nan,
              "what to do when the loss, or without a loss scale a gradient, is not finite: stop "
              "the run, or skip the step"),
        field("max_skipped_iterations", &C::max_skipped_iterations,
              "on_nan=skip: stop the run after this many skipped steps in a row")
            .positive(),
        field("exit_interval", &C::exit_interval,
              "save a checkpoint and exit when the iteration is a multiple of this number; 0: off")
            .min(0)
            .unit("iterations"),
        field("exit_duration_in_mins", &C::exit_duration_in_mins,
              "save a checkpoint and exit after this time; 0: off")
            .min(0)
            .unit("minutes"),
        field("num_threads", &C::num_threads,
              "number of CPU threads per rank; 0: OMP_NUM_THREADS, or an equal share of the cores")
            .range(0, 4096)
            .on_resume(config::OnResume::kIgnored),
        field(
            "cuda_graphs", &C::cuda_graphs,
            "launch the layers of a dense model as CUDA graphs, which saves time where kernels are "
            "shorter than their launches; for device=cuda without model parallelism"),
        field("check_memory", &C::check_memory,
              "refuse to start a run if its estimated memory exceeds the free memory of the "
              "machine by "
              "more than 5 %")};
  }
};

struct CheckpointConfig {
  std::string save;
  std::string load;
  int64_t save_interval = 0;
  bool export_hf = false;
  optim::WeightsKind export_weights = optim::WeightsKind::kModel;
  int64_t keep = 2;
  int64_t keep_every = 0;
  int64_t keep_best = 0;
  std::string keep_best_metric = kValidationLoss;
  int64_t parity = 0;
  bool node_local = false;
  bool async_save = false;
  int64_t staging_limit = 4096;
  OnSaveError on_error = OnSaveError::kStop;
  bool finetune = false;
  bool load_optimizer = true;
  checkpoint::Strictness strictness = checkpoint::Strictness::kRaiseAll;
  bool check_tokenizer = true;

  static constexpr auto fields() {
    using C = CheckpointConfig;
    using config::field;
    return std::tuple{
        field("save", &C::save, "folder to save checkpoints in; empty: do not save"),
        field(
            "load", &C::load,
            "model to start from: checkpoint.save of an earlier run (resumes it); auto: resume "
            "from checkpoint.save, or start a new run if it contains no checkpoint; hf:DIR: "
            "Hugging Face model, a folder or ORG/NAME of a downloaded one; FILE.gguf: GGUF model"),
        field("save_interval", &C::save_interval,
              "number of iterations between checkpoints; 0: save only at the end")
            .min(0)
            .unit("iterations"),
        field("export_hf", &C::export_hf,
              "also export each checkpoint as a Hugging Face model to hf/step_NNNNNNNN in "
              "checkpoint.save"),
        field("export_weights", &C::export_weights,
              "weights that export_hf writes; model: the trained weights; ema: their running mean "
              "(optimizer.ema_decay)"),
        field("keep", &C::keep, "number of latest checkpoints to keep; 0: keep all").min(0),
        field("keep_every", &C::keep_every,
              "also keep checkpoints whose iteration is a multiple of this number; 0: off")
            .min(0)
            .unit("iterations"),
        field("keep_best", &C::keep_best,
              "number of checkpoints with the best keep_best_metric to keep in addition to the "
              "latest")
            .min(0),
        field("keep_best_metric", &C::keep_best_metric,
              "metric for keep_best; loss: training loss of the step; validation_loss or "
              "validation_NAME, where NAME is a metric that evaluation prints (such as "
              "validation_lm_accuracy): only checkpoints saved right after an evaluation are "
              "compared; lower is better for losses, higher for all other metrics")
            .not_empty(),
        field("parity", &C::parity,
              "number of lost shards per checkpoint that parity files can rebuild; 0: no parity "
              "files")
            .range(0, static_cast<int64_t>(checkpoint::kMaxParity)),
        field("node_local", &C::node_local,
              "checkpoint.save and checkpoint.load are local folders of each machine, without a "
              "shared disk: each machine stores the files of its own ranks and fetches missing "
              "files from the other machines"),
        field("async_save", &C::async_save,
              "save in the background: training waits only until the state is copied to memory; at "
              "most one save runs at a time"),
        field("staging_limit", &C::staging_limit,
              "host memory per rank for async_save; what does not fit is written before training "
              "continues")
            .range(1, 1 << 30)
            .unit("MiB"),
        field("on_error", &C::on_error,
              "what to do when a checkpoint cannot be saved: stop the run, or continue without the "
              "checkpoint"),
        field("finetune", &C::finetune,
              "load only the model from checkpoint.load (section model of its configuration, "
              "tokenizer, weights) and start a new run at iteration 0, with a new optimizer and "
              "from the beginning of the data"),
        field("load_optimizer", &C::load_optimizer,
              "load the optimizer state from the checkpoint; false: resume at the saved iteration "
              "with a new optimizer")
            .on_resume(config::OnResume::kTold),
        field("strictness", &C::strictness,
              "what to do when the checkpoint and the model have different tensors; raise_all: "
              "stop; log_unexpected: log and ignore extra tensors in the checkpoint; log_all: also "
              "log missing tensors and keep their initial values")
            .on_resume(config::OnResume::kTold),
        field("check_tokenizer", &C::check_tokenizer,
              "stop if the checkpoint was trained with a different tokenizer")};
  }
  void validate(config::Violations& violations, std::string_view path) const;
};

struct Config {
  models::ModelConfig model;
  TrainConfig train;
  parallelize::ParallelConfig parallel;
  parallel::DdpConfig ddp;
  parallelize::CommOverlapConfig comm_overlap;
  comm::DistConfig dist;
  optim::OptimizerConfig optimizer;
  optim::SchedulerConfig scheduler;
  data::DatasetConfig dataset;
  data::TokenizerConfig tokenizer;
  checkpoint::AdapterSettings peft;
  CheckpointConfig checkpoint;
  LoggerConfig logger;
  evaluation::EvalConfig eval;
  OffloadConfig offload;
  ProfilingConfig profiling;
  MixedPrecisionConfig mixed_precision;
  DeviceKind device = DeviceKind::kAuto;
  Precision dtype = Precision::kFp32;
  KernelChoice kernels = KernelChoice::kAuto;
  bool deterministic = true;
  uint64_t seed = 1234;

  static constexpr auto fields() {
    using C = Config;
    using config::field;
    using config::OnResume;
    return std::tuple{
        field("model", &C::model, "model architecture").on_resume(OnResume::kModel),
        field("train", &C::train, "training loop"),
        field("parallel", &C::parallel, "parallelism: how the model is distributed over ranks"),
        field("ddp", &C::ddp, "data parallelism: sharding, gradient buckets and overlap"),
        field("comm_overlap", &C::comm_overlap,
              "overlap of communication and computation inside layers"),
        field("dist", &C::dist,
              "communication between ranks: timeouts, monitoring, and messages between GPUs")
            .on_resume(OnResume::kIgnored),
        field("optimizer", &C::optimizer, "optimizer and learning rate"),
        field("scheduler", &C::scheduler, "learning rate and weight decay schedules"),
        field("dataset", &C::dataset, "training data").on_resume(OnResume::kData),
        field("tokenizer", &C::tokenizer, "conversion of text to tokens")
            .on_resume(OnResume::kData),
        field("peft", &C::peft, "fine-tuning of low-rank adapters for a frozen model"),
        field("checkpoint", &C::checkpoint, "saving and loading checkpoints")
            .on_resume(OnResume::kIgnored),
        field("logger", &C::logger, "logging and metrics").on_resume(OnResume::kIgnored),
        field("eval", &C::eval, "evaluation on tasks during training")
            .on_resume(OnResume::kIgnored),
        field("offload", &C::offload,
              "move activations and optimizer state to disk (CPU) or host memory (GPU)")
            .on_resume(OnResume::kIgnored),
        field("profiling", &C::profiling, "performance traces").on_resume(OnResume::kIgnored),
        field("mixed_precision", &C::mixed_precision,
              "low-precision matrix products and loss scaling"),
        field("device", &C::device,
              "device to run on; auto: CUDA if a GPU is present and this build supports it, else "
              "the CPU"),
        field("dtype", &C::dtype,
              "data type of weights and activations; with bf16 and fp16, master weights and "
              "gradients are in fp32; with fp16, the loss is scaled")
            .on_resume(OnResume::kState),
        field("kernels", &C::kernels,
              "how CPU kernels are chosen; auto: measure the candidates on this machine and use "
              "the fastest; order: use the first in a fixed list that supports the operation; a "
              "resumed run keeps the kernels of its checkpoint"),
        field(
            "deterministic", &C::deterministic,
            "with device=cuda, runs of the same program with the same configuration give the same "
            "bits; false: faster kernels for the gradients of attention, whose sums are added in "
            "varying order"),
        field("seed", &C::seed, "random seed for initial weights and dropout")
            .non_negative()
            .on_resume(OnResume::kData)};
  }
  void validate(config::Violations& violations, std::string_view path) const;
};

/// Tokens of a sample in each of the model's streams, known before any data is read: T5's targets
/// have a separate length.
std::vector<int64_t> stream_lengths(const Config& config);
/// Of the last stream's tokens, the share that have a target, where it is known before any data is
/// read; else 1.
double share_of_targets(const Config& config);

/// The stages of the model and their schedule.
parallelize::PipelinePlan pipeline_plan(const Config& config);

/// Adds violations for a configuration of a run on `world_size` ranks.
void check_config(const Config& config, int world_size, config::Violations& violations);

/// Fills a config. Later sources override earlier ones: the preset or, unless the run resumes, the
/// model of checkpoint.load; then the files; then the overrides. Defaults that depend on other
/// keys: the dataset type is one that produces the model's inputs from text, the tokenizer is that
/// of the loaded model, and the vocabulary size is the tokenizer's. A loaded head keeps the names
/// of its classes. Throws one ConfigError with all problems of a run on `world_size` ranks.
/// `origins` receives where each key was assigned.
Config load_config(const std::vector<std::string>& files, const std::vector<std::string>& overrides,
                   Config base = {}, int world_size = 1, config::Violations* origins = nullptr);
/// Overload for at most one file.
Config load_config(const std::optional<std::string>& file,
                   const std::vector<std::string>& overrides, Config base = {}, int world_size = 1);

/// The batch size over the run.
optim::BatchSizeSchedule batch_schedule(const TrainConfig& train);

/// Whether no checkpoint is loaded: with checkpoint.load=auto, checkpoint.save holds none yet.
bool starts_fresh(const CheckpointConfig& checkpoint);
/// Whether checkpoint.load=auto: what checkpoint.save holds, if anything.
bool loads_own(const CheckpointConfig& checkpoint);

/// The model of checkpoint.load=hf:DIR or FILE.gguf, as checkpoint::open_model() takes it; none for
/// a run of pentatron.
std::optional<std::string> foreign_model(const CheckpointConfig& checkpoint);

/// The run's length in its own unit, as the schedules count it.
optim::TrainLength train_length(const TrainConfig& train);

/// Iterations of the whole run, whichever way its length was given.
int64_t total_iterations(const TrainConfig& train);

} // namespace pentatron::trainer
