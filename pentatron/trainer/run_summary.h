/// run.json: a summary of a run and how it ended, in the folder of metrics.jsonl.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace pentatron::trainer {

struct RunSummary {
  struct Best {
    int64_t iteration = 0;
    double value = 0;
  };
  std::string name, id;
  /// "running", "finished", "signal SIGINT", "exit_interval", "exit_duration" or "error: TEXT". A
  /// run that was killed stays "running".
  std::string exit_reason = "running";
  std::string started, ended; ///< UTC; `ended` is empty while it runs
  std::string started_from;   ///< the model whose weights the run began with; empty: none
  /// hash_of_config().
  std::string config_hash;
  std::string version, torch_version; ///< of pentatron and LibTorch
  std::string device, layout;
  int64_t ranks = 1;
  int64_t resumed_iteration = 0, iteration = 0, total_iterations = 0;
  int64_t consumed_samples = 0, consumed_tokens = 0;
  double training_seconds = 0; ///< sum of all step times, of earlier starts too
  double timed_tokens = 0;     ///< of the steps that these seconds are of
  std::optional<Best> last_loss, best_loss, last_validation_loss, best_validation_loss;
  int64_t skipped_iterations = 0, nan_iterations = 0;

  /// The values count towards last and best; those that are not finite are passed over.
  void add_loss(int64_t iteration, double loss);
  void add_validation_loss(int64_t iteration, double loss);
};

/// One JSON object, a member a line. Members that are not known are null.
std::string run_summary_json(const RunSummary& summary);

/// The id in the run.json of a run that is resumed; empty if the file has none.
std::string earlier_run_id(const std::filesystem::path& file);

/// An id that no other run has: 8 hexadecimal digits.
std::string new_run_id();

} // namespace pentatron::trainer
