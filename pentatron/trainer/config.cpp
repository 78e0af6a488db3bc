#include "pentatron/trainer/config.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "pentatron/base/error.h"
#include "pentatron/base/hf_cache.h"
#include "pentatron/base/nearest.h"
#include "pentatron/checkpoint/hf/hf_export.h"
#include "pentatron/checkpoint/sharded/folders.h"
#include "pentatron/data/batches_dataset.h"
#include "pentatron/data/check_fields.h"
#include "pentatron/data/gpt/data_paths.h"
#include "pentatron/data/preprocess/open_tokenizer.h"
#include "pentatron/models/model.h"
#include "pentatron/parallelize/parallelize.h"
#include "pentatron/trainer/adapters.h"
#include "pentatron/trainer/evaluation.h"
#include "pentatron/trainer/families.h"
#include "pentatron/trainer/graphs.h"
#include "pentatron/trainer/memory_plan.h"
#include "pentatron/trainer/metrics/hardware.h"
#include "pentatron/trainer/offload.h"
#include "pentatron/trainer/precision.h"
#include "pentatron/trainer/qk_clip.h"
#include "pentatron/trainer/recompute.h"
#include "pentatron/trainer/run_samples.h"
#include "pentatron/trainer/runtime.h"

namespace pentatron::trainer {

namespace {

/// What the number of ranks adds to the rules, where sizes are such that one can reckon with them.
void check_ranks(const Config& config, int world_size, config::Violations& violations) {
  if (violations.any_in("model") || !config::fields_hold(config.train) ||
      !config::fields_hold(config.parallel) || !config::fields_hold(config.ddp))
    return;
  const bool batches = config.dataset.type == data::DatasetType::kBatches;
  parallelize::MicroBatch micro_batch{.samples = config.train.micro_batch_size, .lengths = {}};
  if (!batches && config::fields_hold(config.dataset)) micro_batch.lengths = stream_lengths(config);
  parallelize::check_parallel(config.parallel, config.ddp, config.model, world_size, micro_batch,
                              violations);
}

void check_batch_sizes(const TrainConfig& train, int data_parallel_size,
                       config::Violations& violations) {
  if (!train.step_batch_size_schedule.empty() && !train.rampup_batch_size.empty()) {
    violations.add(
        "train.rampup_batch_size",
        "train.rampup_batch_size and train.step_batch_size_schedule cannot be used together",
        "train.rampup_batch_size=[]");
    return;
  }
  if (!train.rampup_batch_size.empty() && train.rampup_batch_size.size() != 3) {
    violations.add(
        "train.rampup_batch_size",
        fmt::format(
            "train.rampup_batch_size has {} numbers instead of 3: [start, increment, samples]",
            train.rampup_batch_size.size()),
        "train.rampup_batch_size=[]");
    return;
  }
  try {
    batch_schedule(train).check(train.micro_batch_size, data_parallel_size, violations,
                                train.step_batch_size_schedule.empty()
                                    ? "train.global_batch_size"
                                    : "train.step_batch_size_schedule");
  } catch (const ConfigError& error) {
    violations.add("train.global_batch_size", error.what());
  }
}

/// Random tokens come from no file: whoever names one means another type.
void check_mock_path(const Config& config, const std::vector<data::BatchField>& fields,
                     config::Violations& violations) {
  using data::DatasetType;
  const data::DatasetConfig& c = config.dataset;
  if (c.type != DatasetType::kMock || c.path.empty()) return;
  DatasetType meant = data::type_for_text(fields).value_or(DatasetType::kBatches);
  if (meant == DatasetType::kText && data::names_corpora(c)) meant = DatasetType::kIndexed;
  if (c.path.ends_with(".safetensors")) meant = DatasetType::kBatches;
  violations.add("dataset.path",
                 fmt::format("dataset.path={} has no effect with dataset.type=mock, which makes "
                             "random tokens",
                             c.path),
                 fmt::format("dataset.type={}", config::to_string(meant)));
}

/// Whether the model can be trained on that kind of data at all; the rest shows when it is opened.
void check_data(const Config& config, config::Violations& violations) {
  using data::DatasetType;
  const models::ModelConfig& model = config.model;
  const DatasetType type = config.dataset.type;
  const models::ModelSpec spec = models::model_spec(model.with_one_layer());
  if (spec.losses.empty()) {
    violations.add("model.head",
                   fmt::format("model.head={} has no loss, so it cannot be trained",
                               config::to_string(model.head)),
                   "model.head=masked_lm");
    return;
  }
  if (data::can_give(type, spec.fields)) // batches have whatever fields
    return check_mock_path(config, spec.fields, violations);
  const auto fits = data::type_for_text(spec.fields).value_or(DatasetType::kBatches);
  violations.add("dataset.type",
                 fmt::format("dataset.type={} does not provide the data that {} is trained on",
                             config::to_string(type), spec.chosen_by),
                 fmt::format("dataset.type={}", config::to_string(fits)));
}

/// Whether the model has what tells the texts of a pair apart, where a kind of pair was chosen.
void check_pairs(const Config& config, config::Violations& violations) {
  using data::BinaryHead;
  constexpr const char* kKey = "dataset.bert_binary_head";
  const BinaryHead pairs = config.dataset.bert_binary_head;
  if (!config.dataset.has_pairs() || config.model.binary_head ||
      config.model.head != models::ModelHead::kMaskedLm ||
      pairs == data::DatasetConfig{}.bert_binary_head)
    return;
  violations.add(kKey,
                 fmt::format("{}={} has no effect without model.binary_head=true", kKey,
                             config::to_string(pairs)),
                 // The heads of a model that is loaded are as they are.
                 config.checkpoint.load.empty() ? "model.binary_head=true"
                                                : fmt::format("{}=none", kKey));
}

void check_padding(const Config& config, config::Violations& violations) {
  using data::DatasetType;
  const DatasetType type = config.dataset.type;
  const bool pads = data::has_padding(type);
  if (!config.train.remove_padding) return;
  if (config.model.num_moe_experts && pads &&
      type != DatasetType::kSft) // a rank whose samples are all padding would not meet the others
    return violations.add("train.remove_padding",
                          fmt::format("train.remove_padding=true does not support models with "
                                      "experts and dataset.type={} yet",
                                      config::to_string(type)),
                          "train.remove_padding=false");
  const parallelize::ParallelConfig& parallel = config.parallel;
  const int64_t cp = parallel.context_parallel_size, tp = parallel.tensor_model_parallel_size;
  // Each sample keeps a multiple of these tokens, so that all ranks have equally many.
  if (const int64_t each = 2 * cp * tp;
      pads && cp > 1 && parallel.sequence_parallel && config.train.seq_length % each != 0)
    return violations.add(
        "train.seq_length",
        fmt::format("train.seq_length={} is not a multiple of {}, as required by "
                    "train.remove_padding=true with parallel.context_parallel_size={}, "
                    "parallel.tensor_model_parallel_size={} and parallel.sequence_parallel=true",
                    config.train.seq_length, each, cp, tp),
        fmt::format("train.seq_length={}", (config.train.seq_length + each - 1) / each * each));
  if (pads) return;
  violations.add("train.remove_padding",
                 fmt::format("train.remove_padding=true has no effect on dataset.type={}, whose "
                             "samples have no padding",
                             config::to_string(type)),
                 "train.remove_padding=false");
}

void check_best_metric(const Config& config, config::Violations& violations) {
  constexpr const char* kKey = "checkpoint.keep_best_metric";
  const std::string& metric = config.checkpoint.keep_best_metric;
  std::vector<std::string> names = {kTrainingLoss};
  for (const std::string& figure : figure_names(models::model_spec(config.model.with_one_layer())))
    names.push_back("validation_" + figure);
  if (std::ranges::find(names, metric) == names.end()) {
    const std::string near = nearest(metric, names);
    violations.add(kKey,
                   fmt::format("{}={} is not one of {}", kKey, metric, fmt::join(names, ", ")),
                   fmt::format("{}={}", kKey, near.empty() ? kValidationLoss : near));
    return;
  }
  if (config.checkpoint.keep_best > 0 && metric != kTrainingLoss && config.train.eval_interval == 0)
    violations.add("checkpoint.keep_best",
                   fmt::format("checkpoint.keep_best={} needs {}, but "
                               "train.eval_interval=0 turns evaluation off",
                               config.checkpoint.keep_best, metric),
                   fmt::format("{}={}", kKey, kTrainingLoss));
}

} // namespace

std::vector<int64_t> stream_lengths(const Config& config) {
  const models::ModelSpec spec = models::model_spec(config.model.with_one_layer());
  const size_t streams = spec.streams.size();
  std::vector<int64_t> lengths(streams, config.train.seq_length);
  if (config.dataset.type == data::DatasetType::kBatches) {
    try {
      const std::vector<int64_t> own =
          data::lengths_in_batches(config.dataset.path, spec.fields, spec.streams);
      for (size_t i = 0; i < streams; ++i)
        if (own[i] > 0) lengths[i] = own[i];
    } catch (const Error&) { // told when the data are opened
    }
    return lengths;
  }
  if (streams > 1) lengths.back() = data::target_length(config.dataset, config.train.seq_length);
  return lengths;
}

double share_of_targets(const Config& config) {
  return data::share_of_targets(config.dataset);
}

parallelize::PipelinePlan pipeline_plan(const Config& config) {
  parallelize::PipelinePlan plan = parallelize::plan_pipeline(
      config.parallel, config.model, stream_lengths(config), share_of_targets(config));
  plan.prefetch = config.comm_overlap.pp ? 1 : 0;
  return plan;
}

void CheckpointConfig::validate(config::Violations& violations, std::string_view path) const {
  const auto needs = [&](const char* key, const std::string& value, const char* other,
                         const std::string& remedy) {
    violations.add(config::join(path, key),
                   fmt::format("{}={} has no effect without {}", config::join(path, key), value,
                               config::join(path, other)),
                   config::join(path, remedy));
  };
  if (save.empty()) {
    if (save_interval > 0)
      needs("save_interval", fmt::to_string(save_interval), "save", "save=checkpoints");
    if (export_hf) needs("export_hf", "true", "save", "save=checkpoints");
    if (keep_every > 0) needs("keep_every", fmt::to_string(keep_every), "save", "save=checkpoints");
    if (keep_best > 0) needs("keep_best", fmt::to_string(keep_best), "save", "save=checkpoints");
    if (parity > 0) needs("parity", fmt::to_string(parity), "save", "save=checkpoints");
  }
  if (load.empty()) {
    if (finetune) needs("finetune", "true", "load", "finetune=false");
    if (!load_optimizer) needs("load_optimizer", "false", "load", "load_optimizer=true");
    if (!check_tokenizer) needs("check_tokenizer", "false", "load", "check_tokenizer=true");
    if (strictness != checkpoint::Strictness::kRaiseAll)
      needs("strictness", std::string(config::to_string(strictness)), "load",
            "strictness=raise_all");
  }
  const auto alone = [&](const char* key, std::string text, std::string off) {
    if (!node_local) return;
    violations.add(config::join(path, "node_local"),
                   fmt::format("{}=true cannot be used with {}={}, which needs all files of a "
                               "checkpoint in one folder",
                               config::join(path, "node_local"), config::join(path, key), text),
                   fmt::format("{}={}", config::join(path, key), off));
  };
  if (export_hf) alone("export_hf", "true", "false");
  if (parity > 0) alone("parity", fmt::to_string(parity), "0");
  if (loads_own(*this) && save.empty())
    violations.add(config::join(path, "load"),
                   fmt::format("{}=auto loads from {}, which is empty", config::join(path, "load"),
                               config::join(path, "save")),
                   fmt::format("{}=checkpoints", config::join(path, "save")));
  if (loads_own(*this) && finetune)
    violations.add(
        config::join(path, "finetune"),
        fmt::format("{}=true starts a new run from other weights, but {}=auto resumes this run",
                    config::join(path, "finetune"), config::join(path, "load")),
        fmt::format("{}=false", config::join(path, "finetune")));
}

void LoggerConfig::validate(config::Violations& violations, std::string_view path) const {
  const auto needs = [&](const char* key, const std::string& value, const char* other,
                         const std::string& remedy) {
    violations.add(config::join(path, key),
                   fmt::format("{}={} has no effect without {}", config::join(path, key), value,
                               config::join(path, other)),
                   fmt::format("{}={}", config::join(path, other), remedy));
  };
  if (dir.empty() && !wandb_project.empty())
    needs("wandb_project", wandb_project, "dir", "runs/mine");
  if (dir.empty() && !mlflow_experiment.empty())
    needs("mlflow_experiment", mlflow_experiment, "dir", "runs/mine");
  if (mlflow_experiment.empty() && !mlflow_dir.empty())
    needs("mlflow_dir", mlflow_dir, "mlflow_experiment", "mine");
}

/// Whether the machine could train a model with positions for train.seq_length, as far as known.
static bool can_be_as_long(Config config) {
  config.model.max_position_embeddings = config.train.seq_length + config.model.position_offset;
  try {
    const auto ranks = static_cast<int>(config.parallel.tensor_model_parallel_size *
                                        config.parallel.context_parallel_size *
                                        config.parallel.pipeline_model_parallel_size);
    const auto free = free_memory_bytes(read_machine());
    return !free || plan_memory(config, ranks, {.ranks = ranks, .processes = 1}).machine <=
                        static_cast<double>(*free);
  } catch (const Error&) { // other keys are wrong
    return true;
  }
}

namespace {

/// Scores on tasks during training.
void check_eval(const Config& config, config::Violations& violations) {
  const evaluation::EvalConfig& eval = config.eval;
  if (eval.tasks.empty()) {
    if (eval.interval > 0)
      violations.add(
          "eval.interval",
          fmt::format("eval.interval={} has no effect without eval.tasks", eval.interval),
          "eval.interval=0");
    return;
  }
  const std::string tasks = fmt::format("eval.tasks=[{}]", fmt::join(eval.tasks, ","));
  const models::ModelSpec spec = models::model_spec(config.model.with_one_layer());
  if (spec.generates != models::Generates::kContinuation)
    violations.add("eval.tasks",
                   fmt::format("{} needs a model that predicts the next token, which {} does not",
                               tasks, spec.chosen_by),
                   "eval.tasks=[]");
  if (config.parallel.context_parallel_size > 1)
    violations.add("eval.tasks",
                   fmt::format("{} cannot be used with parallel.context_parallel_size={}", tasks,
                               config.parallel.context_parallel_size),
                   "eval.tasks=[], and pentatron evaluate --tasks with the checkpoint");
  if (config.tokenizer.type == data::TokenizerType::kNull)
    violations.add("eval.tasks",
                   tasks + " needs a tokenizer, but tokenizer.type=null encodes no text",
                   "eval.tasks=[]");
  if (eval.max_length.value_or(0) > config.train.seq_length)
    violations.add("eval.max_length",
                   fmt::format("eval.max_length={} is more than train.seq_length={}",
                               *eval.max_length, config.train.seq_length),
                   fmt::format("eval.max_length={}", config.train.seq_length));
}

/// Whoever uses the running mean of the weights needs one.
void check_average(const Config& config, config::Violations& violations) {
  const auto without = [&](const char* key, const std::string& why, const std::string& remedy) {
    violations.add(key, fmt::format("{}=ema {}", key, why), remedy);
  };
  const bool exports = config.checkpoint.export_weights == optim::WeightsKind::kEma;
  const bool evaluates = config.train.eval_weights == optim::WeightsKind::kEma;
  for (const auto& [uses, key] : {std::pair{evaluates, "train.eval_weights"},
                                  std::pair{exports, "checkpoint.export_weights"}})
    if (uses && config.optimizer.ema_decay == 0)
      without(key, "needs a running mean of the weights, but optimizer.ema_decay=0 turns it off",
              "optimizer.ema_decay=0.999");
  if (!exports) return;
  if (!config.checkpoint.export_hf)
    without("checkpoint.export_weights", "has no effect without checkpoint.export_hf=true",
            "checkpoint.export_weights=model");
  if (config.peft.on())
    without("checkpoint.export_weights",
            fmt::format("is not supported with peft.type={}: the adapter itself is exported",
                        config::to_string(config.peft.type)),
            "checkpoint.export_weights=model");
}

} // namespace

void Config::validate(config::Violations& violations, std::string_view) const {
  if (profiling.trace && logger.dir.empty()) {
    violations.add("profiling.trace", "profiling.trace=true writes to logger.dir, which is empty",
                   "logger.dir=runs/trace");
  }
  if (config::fields_hold(train)) check_batch_sizes(train, 1, violations);
  if (!violations.empty()) return; // the rest counts iterations
  // Ready batches bring their own length; the model checks it when it is built.
  if (dataset.type != data::DatasetType::kBatches &&
      model.position_embedding_type != models::PositionEmbedding::kNone &&
      train.seq_length > model.longest_sequence().value_or(train.seq_length)) {
    const int64_t most = *model.longest_sequence();
    // Learned positions of a model that is loaded are as many as they are, and more of a model
    // with dynamic scaling would be positions without scaling.
    const bool fixed =
        (model.learns_positions() && !checkpoint.load.empty()) || model.scales_dynamically();
    violations.add(
        "train.seq_length",
        fmt::format("train.seq_length={} is more than the {} tokens that "
                    "model.max_position_embeddings={}{} allows",
                    train.seq_length, most, model.max_position_embeddings,
                    model.scales_dynamically() ? fmt::format(" with model.rope_scaling.factor={}",
                                                             model.rope_scaling.factor)
                                               : ""),
        fixed || !can_be_as_long(*this) ? fmt::format("train.seq_length={}", most)
                                        : fmt::format("model.max_position_embeddings={}",
                                                      train.seq_length + model.position_offset));
  }
  check_data(*this, violations);
  check_pairs(*this, violations);
  check_padding(*this, violations);
  check_recomputation(train, model, violations);
  check_offload(*this, violations);
  check_eval(*this, violations);
  if (checkpoint.export_hf) {
    try {
      checkpoint::make_hf_config(model);
    } catch (const ConfigError& error) {
      const MessageParts parts = parts_of(error.what());
      violations.add("checkpoint.export_hf", std::string(parts.sentence),
                     fmt::format("checkpoint.export_hf=false{}{}",
                                 parts.remedy.empty() ? "" : " or ", parts.remedy));
    }
  }
  check_average(*this, violations);
  check_best_metric(*this, violations);
  check_samples(*this, violations);
  if (profiling.trace && profiling.trace_start > total_iterations(train)) {
    violations.add(
        "profiling.trace_start",
        fmt::format("profiling.trace_start={} is after the last iteration of the run, {}",
                    profiling.trace_start, total_iterations(train)),
        "profiling.trace_start=1");
  }
  if (optimizer.store_param_remainders && dtype != Precision::kBf16) {
    violations.add(
        "optimizer.store_param_remainders",
        fmt::format("optimizer.store_param_remainders=true needs bf16 weights, but dtype={}",
                    config::to_string(dtype)),
        "optimizer.store_param_remainders=false");
  }
  check_freeze(train, model, violations);
  check_adapters(*this, violations);
  check_qk_clip(*this, violations);
  check_graphs(*this, violations);
  check_precision(*this, violations);
  check_param_group_patterns(optimizer.param_groups, model, violations);
  const optim::TrainLength length = train_length(train);
  if (length.iters + length.samples > 0)
    optim::check_scheduler(scheduler, optimizer.lr, optimizer.min_lr, length, violations);
}

bool starts_fresh(const CheckpointConfig& checkpoint) {
  return checkpoint.load.empty() ||
         (loads_own(checkpoint) && !checkpoint::latest_name(checkpoint.save));
}

bool loads_own(const CheckpointConfig& checkpoint) {
  return checkpoint.load == "auto";
}

std::optional<std::string> foreign_model(const CheckpointConfig& checkpoint) {
  const std::string& load = checkpoint.load;
  if (load.starts_with(kHfPrefix) || load.ends_with(".gguf")) return load;
  return std::nullopt;
}

optim::BatchSizeSchedule batch_schedule(const TrainConfig& train) {
  if (!train.step_batch_size_schedule.empty()) {
    return optim::BatchSizeSchedule::by_tokens(train.step_batch_size_schedule, train.seq_length);
  }
  if (train.rampup_batch_size.size() == 3) {
    return optim::BatchSizeSchedule::ramp_up(train.rampup_batch_size[0], train.rampup_batch_size[1],
                                             train.rampup_batch_size[2], train.global_batch_size);
  }
  return optim::BatchSizeSchedule::constant(train.global_batch_size);
}

int64_t total_iterations(const TrainConfig& train) {
  return train.train_samples ? batch_schedule(train).iterations_for(*train.train_samples)
                             : train.train_iters;
}

optim::TrainLength train_length(const TrainConfig& train) {
  return train.train_samples
             ? optim::TrainLength{.samples = *train.train_samples}
             : optim::TrainLength{.iters = train.train_iters, .batch = train.global_batch_size};
}

void check_config(const Config& config, int world_size, config::Violations& violations) {
  config::validate(config, violations);
  check_ranks(config, world_size, violations);
  if (!violations.empty()) return;
  check_batch_sizes(config.train, parallelize::data_parallel_size(config.parallel, world_size),
                    violations);
  check_offloaded_layers(config, violations);
}

} // namespace pentatron::trainer
