/// The configuration of a run: one struct, one section for each room of the house.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "pentatron/checkpoint/sharded/manifest.h"
#include "pentatron/checkpoint/strictness.h"
#include "pentatron/comm/dist_config.h"
#include "pentatron/config/config.h"
#include "pentatron/data/config.h"
#include "pentatron/models/gpt_config.h"
#include "pentatron/optim/batch_size_schedule.h"
#include "pentatron/optim/lr_schedule.h"
#include "pentatron/optim/optimizer_config.h"
#include "pentatron/parallel/ddp/ddp_config.h"
#include "pentatron/parallelize/parallel_config.h"
#include "pentatron/trainer/profiling_config.h"

namespace pentatron::trainer {

enum class DeviceKind : uint8_t { kAuto, kCpu, kCuda };
constexpr auto enum_names(DeviceKind) {
  return std::array{config::name(DeviceKind::kAuto, "auto"), config::name(DeviceKind::kCpu, "cpu"),
                    config::name(DeviceKind::kCuda, "cuda")};
}

enum class Precision : uint8_t { kFp64, kFp32, kBf16 };
constexpr auto enum_names(Precision) {
  return std::array{config::name(Precision::kFp64, "fp64"), config::name(Precision::kFp32, "fp32"),
                    config::name(Precision::kBf16, "bf16")};
}

enum class KernelChoice : uint8_t { kAuto, kOrder };
constexpr auto enum_names(KernelChoice) {
  return std::array{config::name(KernelChoice::kAuto, "auto"),
                    config::name(KernelChoice::kOrder, "order")};
}

enum class Recompute : uint8_t { kNone, kFull };
constexpr auto enum_names(Recompute) {
  return std::array{config::name(Recompute::kNone, "none"), config::name(Recompute::kFull, "full")};
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

enum class BestMetric : uint8_t { kValidationLoss, kLoss };
constexpr auto enum_names(BestMetric) {
  return std::array{config::name(BestMetric::kValidationLoss, "validation_loss"),
                    config::name(BestMetric::kLoss, "loss")};
}

struct TrainConfig {
  int64_t train_iters = 200;
  std::optional<int64_t> train_samples;
  int64_t seq_length = 256;
  int64_t micro_batch_size = 4;
  int64_t global_batch_size = 8;
  std::string step_batch_size_schedule;
  std::vector<int64_t> rampup_batch_size;
  Recompute recompute = Recompute::kNone;
  int64_t eval_interval = 0;
  int64_t eval_iters = 10;
  OnNan on_nan = OnNan::kStop;
  int64_t max_skipped_iterations = 10;
  int64_t exit_interval = 0;
  double exit_duration_in_mins = 0;
  int64_t sample_tokens = 0;
  int64_t num_threads = 0;

  static constexpr auto fields() {
    using C = TrainConfig;
    using config::field;
    return std::tuple{
        field("train_iters", &C::train_iters, "optimizer steps of the run")
            .min(0)
            .unit("iterations"),
        field("train_samples", &C::train_samples,
              "length of the run in samples; replaces train_iters")
            .positive()
            .unit("samples"),
        field("seq_length", &C::seq_length, "tokens of a sample")
            .size()
            .unit("tokens")
            .on_resume(config::OnResume::kData),
        field("micro_batch_size", &C::micro_batch_size, "samples of one forward pass on one rank")
            .size()
            .unit("samples"),
        field("global_batch_size", &C::global_batch_size,
              "samples of one optimizer step over all ranks")
            .positive()
            .unit("samples"),
        field("step_batch_size_schedule", &C::step_batch_size_schedule,
              "batch sizes by consumed tokens, as \"0:768 250B:1536\"; replaces global_batch_size"),
        field("rampup_batch_size", &C::rampup_batch_size,
              "[start, increment, samples]: grow to global_batch_size")
            .positive(),
        field("recompute", &C::recompute,
              "full: keep only the inputs of layers and run them again in backward"),
        field("eval_interval", &C::eval_interval, "iterations between evaluations; 0: none")
            .min(0)
            .unit("iterations"),
        field("eval_iters", &C::eval_iters, "global batches of an evaluation").positive(),
        field("on_nan", &C::on_nan,
              "what to do at a loss or gradient that is not finite: stop, or skip the step"),
        field("max_skipped_iterations", &C::max_skipped_iterations,
              "skipped steps in a row after which the run stops")
            .positive(),
        field("exit_interval", &C::exit_interval,
              "save and exit at every multiple of this iteration; 0: never")
            .min(0)
            .unit("iterations"),
        field("exit_duration_in_mins", &C::exit_duration_in_mins,
              "save and exit after this time; 0: never")
            .min(0)
            .unit("minutes"),
        field("sample_tokens", &C::sample_tokens,
              "length of the text sample written at the end; 0: none")
            .min(0)
            .unit("tokens"),
        field("num_threads", &C::num_threads, "compute threads of the rank; 0: all cores")
            .range(0, 4096)};
  }
};

struct CheckpointConfig {
  std::string save;
  std::string load;
  int64_t save_interval = 0;
  bool export_hf = false;
  int64_t keep = 2;
  int64_t keep_every = 0;
  int64_t keep_best = 0;
  BestMetric keep_best_metric = BestMetric::kValidationLoss;
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
        field("save", &C::save, "folder to save the run in; empty: not saved"),
        field("load", &C::load,
              "where to start from: a folder of checkpoint.save; auto: checkpoint.save itself, and "
              "from the beginning if nothing is there; hf:DIR for a Hugging Face model; FILE.gguf"),
        field("save_interval", &C::save_interval, "iterations between saves; 0: only at the end")
            .min(0)
            .unit("iterations"),
        field("export_hf", &C::export_hf,
              "write a Hugging Face folder for each checkpoint, as hf/step_NNNNNNNN in "
              "checkpoint.save"),
        field("keep", &C::keep, "newest checkpoints that stay; 0: all").min(0),
        field("keep_every", &C::keep_every,
              "checkpoints at multiples of this iteration stay too; 0: none for that")
            .min(0)
            .unit("iterations"),
        field("keep_best", &C::keep_best, "so many with the lowest keep_best_metric stay too")
            .min(0),
        field("keep_best_metric", &C::keep_best_metric,
              "what keep_best looks at: the loss of the step, or the validation loss of those "
              "saved right after an evaluation"),
        field("parity", &C::parity,
              "so many shards of a checkpoint may be lost and are rebuilt from parity files; 0: "
              "none")
            .range(0, static_cast<int64_t>(checkpoint::kMaxParity)),
        field("node_local", &C::node_local,
              "checkpoint.save and checkpoint.load name a folder that each machine has of its own: "
              "it keeps the files of its ranks, and machines give each other what they lack"),
        field("async_save", &C::async_save,
              "save in the background: training waits for a copy only, and at most one save is "
              "under way"),
        field("staging_limit", &C::staging_limit,
              "host memory of a rank for async_save; what does not fit is written before training "
              "goes on")
            .range(1, 1 << 30)
            .unit("MiB"),
        field("on_error", &C::on_error,
              "what to do when a checkpoint cannot be written: stop, or continue without it"),
        field("finetune", &C::finetune,
              "take only the weights of checkpoint.load: a fresh optimizer, iteration 0, data from "
              "the beginning"),
        field("load_optimizer", &C::load_optimizer,
              "false: go on at the saved iteration with a fresh optimizer"),
        field("strictness", &C::strictness,
              "tensors that only one of checkpoint and model has: refuse; tell those that only the "
              "checkpoint has; or tell both, and those it lacks keep their initial values"),
        field("check_tokenizer", &C::check_tokenizer, "refuse a checkpoint of another tokenizer")};
  }
  void validate(config::Violations& violations, std::string_view path) const;
};

struct LoggerConfig {
  std::string dir;
  int64_t log_interval = 10;
  bool tensorboard = true;
  bool plot = true;
  std::optional<double> peak_tflops;

  static constexpr auto fields() {
    using C = LoggerConfig;
    using config::field;
    return std::tuple{
        field("dir", &C::dir,
              "folder for metrics.jsonl, the loss plot and TensorBoard events; empty: none"),
        field("log_interval", &C::log_interval, "iterations between console lines")
            .positive()
            .unit("iterations"),
        field("tensorboard", &C::tensorboard, "write TensorBoard events"),
        field("plot", &C::plot, "draw loss.svg at the end"),
        field("peak_tflops", &C::peak_tflops,
              "peak of the device for MFU; default: known for GPUs, measured on CPUs")
            .positive()
            .unit("TFLOP/s")};
  }
};

struct Config {
  models::GptConfig model;
  TrainConfig train;
  parallelize::ParallelConfig parallel;
  parallel::DdpConfig ddp;
  parallelize::CommOverlapConfig comm_overlap;
  comm::DistConfig dist;
  optim::OptimizerConfig optimizer;
  optim::SchedulerConfig scheduler;
  data::DatasetConfig dataset;
  data::TokenizerConfig tokenizer;
  CheckpointConfig checkpoint;
  LoggerConfig logger;
  ProfilingConfig profiling;
  DeviceKind device = DeviceKind::kAuto;
  Precision dtype = Precision::kFp32;
  KernelChoice kernels = KernelChoice::kAuto;
  uint64_t seed = 1234;

  static constexpr auto fields() {
    using C = Config;
    using config::field;
    using config::OnResume;
    return std::tuple{
        field("model", &C::model, "the model").on_resume(OnResume::kModel),
        field("train", &C::train, "the loop"),
        field("parallel", &C::parallel, "how the model lies over the ranks"),
        field("ddp", &C::ddp, "data parallel: sharding, buckets, overlap"),
        field("comm_overlap", &C::comm_overlap, "communication beside computation inside layers"),
        field("dist", &C::dist, "how ranks watch each other"),
        field("optimizer", &C::optimizer, "the optimizer"),
        field("scheduler", &C::scheduler, "learning rate and weight decay over time"),
        field("dataset", &C::dataset, "what is read").on_resume(OnResume::kData),
        field("tokenizer", &C::tokenizer, "how text becomes tokens").on_resume(OnResume::kData),
        field("checkpoint", &C::checkpoint, "saving and loading").on_resume(OnResume::kIgnored),
        field("logger", &C::logger, "what the run shows").on_resume(OnResume::kIgnored),
        field("profiling", &C::profiling, "where the time goes"),
        field("device", &C::device, "auto: CUDA if there is a GPU and the build knows it"),
        field("dtype", &C::dtype,
              "of weights and activations; bf16 keeps fp32 master weights and gradients")
            .on_resume(OnResume::kState),
        field("kernels", &C::kernels,
              "auto: of the CPU kernels that can compute something, the one that measures fastest "
              "on this machine; a resumed run keeps its choice. order: the first in a fixed order"),
        field("seed", &C::seed, "of initial weights and dropout").on_resume(OnResume::kData)};
  }
  void validate(config::Violations& violations, std::string_view path) const;
};

/// Fills a config from an optional file and overrides, in this order: preset or the model
/// of checkpoint.load where that is no run that goes on, file, overrides. Every problem of a run on
/// `world_size` ranks in one ConfigError.
Config load_config(const std::optional<std::string>& file,
                   const std::vector<std::string>& overrides, Config base = {}, int world_size = 1);

/// The batch size over the run.
optim::BatchSizeSchedule batch_schedule(const TrainConfig& train);

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
