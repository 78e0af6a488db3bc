/// The section `logger`: the output of a run.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "pentatron/config/config.h"

namespace pentatron::trainer {

enum class LineFormat : uint8_t { kCompact, kMegatron };
constexpr auto enum_names(LineFormat) {
  return std::array{config::name(LineFormat::kCompact, "compact"),
                    config::name(LineFormat::kMegatron, "megatron")};
}

enum class ProgressBar : uint8_t { kAuto, kOn, kOff };
constexpr auto enum_names(ProgressBar) {
  return std::array{config::name(ProgressBar::kAuto, "auto"), config::name(ProgressBar::kOn, "on"),
                    config::name(ProgressBar::kOff, "off")};
}

struct LoggerConfig {
  std::string dir;
  int64_t log_interval = 10;
  LineFormat format = LineFormat::kCompact;
  ProgressBar progress = ProgressBar::kAuto;
  bool tensorboard = true;
  bool plot = true;
  int64_t dead_expert_steps = 100;
  bool log_max_attention_logit = false;
  std::vector<std::string> sample_prompts;
  int64_t sample_interval = 0;
  int64_t sample_tokens = 100;
  double sample_temperature = 0.8;
  std::string run_name;
  std::string wandb_project;
  std::string mlflow_experiment;
  std::string mlflow_dir;
  std::optional<double> peak_tflops;

  static constexpr auto fields() {
    using C = LoggerConfig;
    using config::field;
    return std::tuple{
        field("dir", &C::dir,
              "folder for metrics.jsonl, run.json, the loss plot, TensorBoard events and offline "
              "runs of W&B and MLflow; empty: write no files"),
        field("log_interval", &C::log_interval, "number of iterations between lines on the console")
            .positive()
            .unit("iterations"),
        field("format", &C::format,
              "format of the training lines on the console; compact: at most 120 columns; "
              "megatron: the format of Megatron-LM, for tools that parse it"),
        field("progress", &C::progress,
              "progress bar below the training lines; auto: if the console is a terminal; on: also "
              "if it is not; off: never"),
        field("tensorboard", &C::tensorboard, "write TensorBoard events to logger.dir"),
        field("plot", &C::plot,
              "draw the loss curve to loss.svg and the load of experts to experts.svg in "
              "logger.dir, and update them during the run"),
        field("dead_expert_steps", &C::dead_expert_steps,
              "warn when an expert has received no token for this many iterations; 0: never")
            .non_negative()
            .unit("iterations"),
        field("log_max_attention_logit", &C::log_max_attention_logit,
              "log the largest attention logit of each step (scaled product of a query and a key); "
              "always with optimizer.qk_clip=true"),
        field("sample_prompts", &C::sample_prompts,
              "prompts that the model continues during the run; the answers are printed on the "
              "console and written to samples.jsonl in logger.dir; \"\": generate a document from "
              "its beginning; a JSON object: an example in the format of dataset.type=sft, whose "
              "answer the model generates, such as {\"messages\": [{\"role\": \"user\", "
              "\"content\": \"Hello\"}]}"),
        field("sample_interval", &C::sample_interval,
              "number of iterations between answers to sample_prompts; 0: only after the last "
              "iteration")
            .non_negative()
            .unit("iterations"),
        field("sample_tokens", &C::sample_tokens,
              "maximum number of tokens to generate for each of sample_prompts")
            .size()
            .unit("tokens"),
        field("sample_temperature", &C::sample_temperature,
              "sampling temperature of answers to sample_prompts; 0: always take the most likely "
              "token")
            .min(0),
        field("run_name", &C::run_name,
              "name of the run in run.json, W&B and MLflow; default: the name of logger.dir"),
        field("wandb_project", &C::wandb_project,
              "write an offline run of this W&B project to logger.dir/wandb, for wandb sync; "
              "empty: no W&B run"),
        field("mlflow_experiment", &C::mlflow_experiment,
              "write a run of this MLflow experiment to logger.mlflow_dir; empty: no MLflow run"),
        field("mlflow_dir", &C::mlflow_dir,
              "MLflow file store, which may contain runs of many experiments; default: mlruns in "
              "logger.dir"),
        field("peak_tflops", &C::peak_tflops,
              "peak performance of the device, used to compute MFU; default: a known value for "
              "GPUs, measured for CPUs")
            .positive()
            .unit("TFLOP/s")};
  }
  void validate(config::Violations& violations, std::string_view path) const;
};

} // namespace pentatron::trainer
