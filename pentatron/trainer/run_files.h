/// What a run writes into logger.dir. Whatever writes a file takes its name from here, so that no
/// run replaces one that it does not know.
#pragma once

#include <array>

#include "pentatron/checkpoint/meant_checkpoints.h"

namespace pentatron::trainer {

inline constexpr const char* kMetricsFile = "metrics.jsonl";
inline constexpr const char* kSummaryFile = "run.json";
inline constexpr const char* kConfigFile = checkpoint::kRunConfigName;
inline constexpr const char* kKernelsFile = "kernels.json";
inline constexpr const char* kLossPlotFile = "loss.svg";
inline constexpr const char* kExpertPlotFile = "experts.svg";
inline constexpr const char* kSkippedFile = "skipped.jsonl";
inline constexpr const char* kSamplesFile = "samples.jsonl";
inline constexpr const char* kTraceFile = "trace.json";
inline constexpr const char* kPipelinePlotFile = "pipeline.svg";
inline constexpr const char* kTensorBoardFolder = "tensorboard";
inline constexpr const char* kWandbFolder = "wandb";
inline constexpr const char* kMlflowFolder = "mlruns";

inline constexpr std::array kRunFiles{
    kMetricsFile,       kSummaryFile, kConfigFile,  kKernelsFile, kLossPlotFile,
    kExpertPlotFile,    kSkippedFile, kSamplesFile, kTraceFile,   kPipelinePlotFile,
    kTensorBoardFolder, kWandbFolder, kMlflowFolder};

} // namespace pentatron::trainer
