/// Shows a run: console line and progress bar, metrics.jsonl, run.json, TensorBoard, W&B, MLflow,
/// the loss plot. Only the main rank shows anything. If a file cannot be written, training
/// continues: a warning names the files that are incomplete, and one message says when they can be
/// written again.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "pentatron/checkpoint/run_saver.h"
#include "pentatron/trainer/config.h"
#include "pentatron/trainer/evaluation.h"
#include "pentatron/trainer/metrics/expert_load.h"
#include "pentatron/trainer/metrics/peak.h"
#include "pentatron/trainer/metrics/train_log.h"
#include "pentatron/trainer/run_samples.h"
#include "pentatron/trainer/run_tasks.h"
#include "pentatron/trainer/step_flops.h"

namespace pentatron::trainer {

struct StepReport {
  int64_t iteration = 0;
  int64_t consumed_samples = 0;
  int64_t samples = 0;
  bool computed = true;       ///< if not, the batch had no targets, and the step was skipped
  std::optional<double> loss; ///< none: one of the terms that it sums has no target
  Scores terms;               ///< of a model with several loss terms, by name
  std::optional<double> grad_norm;
  AttentionLogits logits;
  std::optional<double> loss_scale; ///< of the next step, as Megatron's logs have it
  std::vector<LayerLoad> experts;   ///< of layers that have some
  double lr = 0;
  double step_time_s = 0;
  StepFlops flops;
  double data_wait = 0;
  bool finite = true;
  bool too_large = false;       ///< the gradient norm, for an update
  bool overflow = false;        ///< of gradients; the loss scale answers it
  int64_t skipped = 0, nan = 0; ///< of the run so far
};

struct ReporterOptions {
  int64_t total_iterations = 0;
  int64_t resumed_iteration = 0, resumed_samples = 0;
  int64_t tokens_per_sample = 0;
  int64_t world_size = 1;
  std::optional<Peak> peak;
  at::Device memory_device = at::kCPU;         ///< whose memory is reported
  std::string loss_name = "loss";              ///< as Megatron's lines have it
  std::vector<std::string> expert_layers = {}; ///< names of layers with experts
  bool main_rank = true;
  bool progress_bar = false;                     ///< with logger.progress=auto
  std::map<std::string, std::string> files = {}; ///< to write into logger.dir, by name
  /// For run.json; `started_from`: see RunSummary.
  std::string version, torch_version, device, layout, started_from;
};

class Reporter {
 public:
  Reporter(const Config& config, const ReporterOptions& options);
  ~Reporter();

  /// A horizontal line in the plot: the unigram entropy.
  void set_reference(double loss);
  /// Whether this iteration ends with a line on the console.
  bool prints(int64_t iteration) const;
  void step(const StepReport& report);
  /// What became of a checkpoint: a line of the log, and a member of the next step's line in
  /// metrics.jsonl.
  void save(const checkpoint::SaveEvent& event);
  void evaluation(int64_t iteration, int64_t consumed_samples, const Evaluation& result);
  /// Scores on eval.tasks.
  void task_scores(int64_t iteration, int64_t consumed_samples, const TaskFigures& scores);
  /// What the model wrote for logger.sample_prompts.
  void samples(int64_t iteration, const std::vector<WrittenSample>& written);
  /// Closes files and draws the plot. `exit_reason`: see RunSummary. Only the first call counts.
  void finish(const std::string& exit_reason);

  std::filesystem::path metrics_path() const; ///< empty: not written
  std::filesystem::path plot_path() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

} // namespace pentatron::trainer
