/// The names of the files that a run writes to logger.dir. All code that writes a file uses these
/// names, so no run replaces an unknown file.
#pragma once

#include <array>

#include "pentatron/checkpoint/meant_checkpoints.h"
#include "pentatron/checkpoint/sharded/attachments.h"

namespace pentatron::trainer {

inline constexpr const char* kMetricsFile = "metrics.jsonl";
inline constexpr const char* kSummaryFile = "run.json";
inline constexpr const char* kConfigFile = checkpoint::kRunConfigName;
inline constexpr const char* kKernelsFile = checkpoint::kKernelsName;
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
