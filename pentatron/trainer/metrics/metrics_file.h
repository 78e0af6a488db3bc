/// metrics.jsonl: one JSON object for each step and each evaluation, numbers with all their digits.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "pentatron/trainer/metrics/scores.h"
#include "pentatron/trainer/metrics/train_log.h"

namespace pentatron::trainer {

/// The line of one step, without its end: iteration, loss, other losses under their names with "_"
/// for spaces, grad_norm, learning_rate, consumed_samples, global_batch_size, step_time_s and,
/// where known, consumed_tokens, tokens_per_s, tflops, mfu, hfu, memory_bytes, loss_scale,
/// num_zeros, params_norm, max_attention_logit, clipped_heads, data_wait, checkpoints (what became
/// of them since the step before); skipped and nan (this step's). JSON has no NaN and no infinity:
/// such a number is null, and `nan` is true if the loss is one.
std::string metrics_line(const TrainLog& log);

/// The line of an evaluation: iteration, validation_loss, each figure behind "validation_",
/// consumed_samples and consumed_tokens. It has no `loss`, and stands behind the line of the step
/// after which it was made.
std::string evaluation_line(int64_t iteration, std::optional<double> loss, const Scores& figures,
                            int64_t consumed_samples, int64_t consumed_tokens);

/// The line of scores on tasks: iteration, the figures, consumed_samples and consumed_tokens.
std::string task_line(int64_t iteration, const Scores& figures, int64_t consumed_samples,
                      int64_t consumed_tokens);

/// Appends lines to a file, each written whole. Lines that cannot be written wait for the next
/// call, so a disk that was full for a while leaves no gap.
class MetricsFile {
 public:
  /// Goes on in an existing file after `resumed_iteration`: lines of later iterations, and a last
  /// line without its end, are cut off. 0 starts afresh. The file is opened by the first call.
  MetricsFile(const std::filesystem::path& path, int64_t resumed_iteration);
  ~MetricsFile();
  MetricsFile(const MetricsFile&) = delete;
  MetricsFile& operator=(const MetricsFile&) = delete;

  /// All throw DataError if the file cannot be written; it then ends with its last whole line.
  void write(const TrainLog& log) { write(metrics_line(log)); }
  void write(const std::string& line);
  void flush();
  /// Lines that are gone because too many had to wait.
  int64_t lost() const { return lost_; }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  int fd_ = -1;
  int64_t size_ = 0;    ///< of the whole lines in the file
  std::string waiting_; ///< whole lines
  int64_t lost_ = 0;
};

} // namespace pentatron::trainer
