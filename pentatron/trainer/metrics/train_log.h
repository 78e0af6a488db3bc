/// What a training step reports, and how it reads on a console: a line of at most 120 columns, or
/// Megatron-LM's line for tools that parse it.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "pentatron/trainer/metrics/expert_load.h"
#include "pentatron/trainer/metrics/scores.h"

namespace pentatron::trainer {

/// What became of a checkpoint between two steps.
struct SaveLog {
  int64_t iteration = 0; ///< whose state it holds
  std::string state;     ///< "queued", "written", "durable" or "failed"
  double seconds = 0;    ///< since the save began; of "queued" what training waited
  int64_t bytes = 0;
};

/// Of attention in one step: the largest logit, and the query heads that qk-clip has made smaller.
struct AttentionLogits {
  std::optional<double> most;
  std::optional<int64_t> clipped_heads;
};

/// Values of one step or, on the console, of the steps since the last line.
struct TrainLog {
  std::chrono::system_clock::time_point time;
  int64_t iteration = 0; ///< from 1
  int64_t train_iters = 0;
  int64_t consumed_samples = 0;
  int64_t consumed_tokens = 0; ///< 0: not known
  int64_t skipped_samples = 0;
  double step_time_s = 0;       ///< mean of the steps
  std::optional<double> tflops; ///< model TFLOP/s of one device
  double learning_rate = 0;
  int64_t global_batch_size = 0;
  /// The total first, which has no value if one of its terms has no target; empty: no targets at
  /// all.
  std::vector<std::pair<std::string, std::optional<double>>> losses;
  std::optional<double> loss_scale;
  std::optional<double> grad_norm;
  std::optional<int64_t> num_zeros;
  std::optional<double> params_norm;
  AttentionLogits logits;
  int64_t skipped_iterations = 0;
  int64_t nan_iterations = 0;

  std::optional<double> tokens_per_s;
  std::optional<double> mfu; ///< share of the peak that the model's own FLOPs use
  std::optional<double> hfu; ///< the same with recomputation counted
  std::optional<int64_t> memory_bytes;
  std::optional<double> data_wait; ///< share of the time spent waiting for data
  std::optional<double> eta_s;
  int64_t world_size = 1;
  std::vector<SaveLog> saves;     ///< since the step before
  std::vector<LayerLoad> experts; ///< of layers that have some
};

inline constexpr size_t kLineColumns = 120;

/// "loss 3.4567", "loss undefined" if one of its terms has no target, "no targets" at all.
std::string loss_text(std::optional<double> loss, bool targets);
/// "iteration  10/1000 | loss 3.4567 | grad norm 1.234 | lr 3.00e-04 | 12.3k tokens/s | MFU 41.2% |
/// 1.2 GiB | ETA 3m20s", at most `columns` wide. Behind it, where they matter: loss scale,
/// skipped and nan iterations, the time spent waiting for data. What does not fit is left out, the
/// memory first; losses, skipped and nan iterations stay.
std::string compact_line(const TrainLog& log, size_t columns = kLineColumns);

/// "iteration 100/1000 | validation loss 3.4567 | perplexity 31.71", or with figures in place of
/// the perplexity: "... | lm accuracy 0.412".
std::string compact_evaluation(int64_t iteration, int64_t train_iters, std::optional<double> loss,
                               const Scores& figures = {});
/// "perplexity 31.71", or the figures.
std::string figures_text(std::optional<double> loss, const Scores& figures);

/// "12.3k", "999", "1.50M"
std::string rate_text(double per_second);

/// "0.5s", "45s", "3m20s", "1h02m", "3d04h"; "?" for a time that is not known.
std::string short_duration(double seconds);

/// Megatron's line without its end, and our fields behind. Every loss is in it, whatever its value.
/// Source: Megatron-LM, training.py, training_log().
std::string train_line(const TrainLog& log);

/// Three lines, the middle one between rules: validation (or test) loss with its perplexity
/// exp(min(20, loss)).
std::string evaluation_box(const std::string& title, const std::string& name,
                           std::optional<double> loss);

/// exp(min(20, loss)), Megatron's perplexity.
double perplexity(double loss);

/// "0:00:07", "12:34:56", "3d 04:05:06"; "?" for a time that is not known.
std::string clock_text(double seconds);

/// "512 B", "1.50 GB": decimal units.
std::string bytes_text(double bytes);

/// The shortest decimal text that reads back as the same double; "NaN", "Infinity" and "-Infinity"
/// for the others.
std::string exact_text(double value);
/// The same for JSON: "null" for the others.
std::string json_text(double value);

} // namespace pentatron::trainer
