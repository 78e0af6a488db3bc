/// The global batch size as a piecewise constant function of the consumed samples or tokens. Does
/// not depend on LibTorch.
///
/// Units: samples; token thresholds are divided by the sequence length, rounding down, as
/// Megatron-LM does. An iteration takes the batch size that holds before it.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "pentatron/config/violations.h"

namespace pentatron::optim {

class BatchSizeSchedule {
 public:
  struct Step {
    int64_t from_samples = 0;
    int64_t batch_size = 0;
    bool operator==(const Step&) const = default;
  };

  /// One size for the whole run.
  static BatchSizeSchedule constant(int64_t batch_size);

  /// "0:768 250B:1536": from so many tokens on, that batch size. Separated by spaces or commas;
  /// thresholds begin with 0, increase, and take the suffixes K, M, B and T (1e3 to 1e12). Throws
  /// ConfigError, naming train.step_batch_size_schedule.
  static BatchSizeSchedule by_tokens(std::string_view text, int64_t sequence_length);

  /// Megatron-LM's --rampup-batch-size: grows from `start` by `increment` at even distances over
  /// the first `samples` samples, up to `final_size`. Throws ConfigError, naming
  /// train.rampup_batch_size.
  static BatchSizeSchedule ramp_up(int64_t start, int64_t increment, int64_t samples,
                                   int64_t final_size);

  int64_t at_samples(int64_t consumed_samples) const;

  /// Samples consumed by the first `iterations` iterations, and the iterations that consume at
  /// least `samples`.
  int64_t samples_after(int64_t iterations) const;
  int64_t iterations_for(int64_t samples) const;

  /// Every size of the whole schedule has to be a multiple of micro_batch_size *
  /// data_parallel_size.
  void check(int64_t micro_batch_size, int64_t data_parallel_size, config::Violations& violations,
             std::string_view path) const;

  const std::vector<Step>& steps() const { return steps_; }

 private:
  /// Assignments with which every batch size is a multiple of micro-batches and ranks.
  std::string working_size(int64_t micro_batch_size, int64_t data_parallel_size,
                           std::string_view path) const;
  explicit BatchSizeSchedule(std::vector<Step> steps) : steps_(std::move(steps)) {}
  std::vector<Step> steps_; // increasing from 0, never empty
};

} // namespace pentatron::optim
