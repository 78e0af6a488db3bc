/// Provides the microbatches of a data-parallel rank, step by step, prepared ahead by a background
/// thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "pentatron/data/batch.h"
#include "pentatron/data/dataset.h"

namespace pentatron::data {

struct LoaderOptions {
  int64_t global_batch_size = 1;
  int64_t micro_batch_size = 1;
  int64_t rank = 0; ///< of the data-parallel axis
  int64_t size = 1;
  int64_t consumed_samples = 0;
  int64_t prefetch = 2; ///< steps prepared ahead
  /// Fills an incomplete last global batch with samples of fill values, which are not targets.
  bool pad_last_batch = false;
  /// Microbatches come without the padding behind samples (remove_padding.h), with a multiple of
  /// `token_multiple` tokens in each stream, and `sample_multiple` in each sample.
  bool remove_padding = false;
  int64_t token_multiple = 1, sample_multiple = 1;
  std::vector<ShiftedField> shifted = {}; ///< that batches have in addition
  /// The global batch size of the step that begins after `consumed` samples, for a batch size that
  /// grows; a pure function. Replaces global_batch_size.
  std::function<int64_t(int64_t consumed)> global_batch_size_at = {};
};

/// Sums over samples, of one stream.
struct StreamTotals {
  int64_t tokens = 0; ///< that the model computes
  int64_t real_tokens = 0;
  int64_t squared_lengths = 0;  ///< StreamShape::squared_lengths
  DocumentLengths lengths = {}; ///< StreamShape::lengths
};

/// What one rank does in one step.
struct StepData {
  int64_t first_sample = 0; ///< of the global batch
  int64_t global_batch_size =
      0; ///< the global batch is samples [first_sample, first_sample + global_batch_size)
  std::vector<Batch> microbatches;
  /// Of this rank's microbatches, by field; their sum over the ranks is the denominator of a loss
  /// on this field.
  std::map<std::string, int64_t> num_targets;
  std::map<std::string, StreamTotals> totals; ///< of this rank's microbatches, by stream
};

/// The global batch is dealt in blocks of micro_batch_size * size samples: microbatch m of rank r
/// holds samples first + (m * size + r) * micro_batch_size and on. So the union over ranks, and
/// each step's samples, are the same for every size. One consumer thread.
class Loader {
 public:
  /// Throws ConfigError if micro_batch_size * size does not divide the global batch size.
  Loader(std::shared_ptr<const Dataset> dataset, LoaderOptions options);
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  /// The next step's data; waits for it if need be. Throws DataError when the dataset has no full
  /// global batch left, or what the dataset throws.
  StepData next();

  /// Samples of the steps handed out so far, counted from the first of the run: what a checkpoint
  /// keeps.
  int64_t consumed_samples() const;

  /// The share of time, since the last call of this (or construction), that next() waited
  /// for data; in [0, 1].
  double wait_share();

 private:
  struct State;
  static void produce(State& state);

  std::unique_ptr<State> state_;
};

} // namespace pentatron::data
