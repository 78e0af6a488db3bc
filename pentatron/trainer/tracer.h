/// The trace of some iterations: what every rank computed and communicated when.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "pentatron/comm/recorder.h"
#include "pentatron/parallelize/parallelize.h"
#include "pentatron/trainer/metrics/chrome_trace.h"
#include "pentatron/trainer/profiling_config.h"
#include "pentatron/trainer/step.h"

namespace pentatron::trainer {

/// Lanes of a rank's process: iterations; compute (passes of the schedule, named as in the
/// schedule's text form, and the phases around them); waits, in which the rank does nothing else;
/// communication under way, in as many lanes as there were operations at once.
class Tracer {
 public:
  struct Options {
    ProfilingConfig profiling;
    std::filesystem::path folder;
    std::string schedule; ///< title of the picture
  };
  /// Records nothing if profiling.trace is off. `recorder` is that of the groups.
  Tracer(Options options, comm::ParallelGroups groups, std::shared_ptr<comm::Recorder> recorder);

  /// Where the coming iteration writes what it does, null if it is not traced. Collective, and so
  /// is end().
  StepTimes* begin(int64_t iteration);
  /// After the last traced iteration the files are written.
  void end();
  /// Writes what there is, if the run ended before.
  void finish();

 private:
  struct Step {
    int64_t iteration = 0;
    double start_s = 0, end_s = 0;
    StepTimes times;
  };
  double clock_shift() const;
  std::vector<TraceSlice> compute_slices() const;
  void write();

  Options options_;
  comm::ParallelGroups groups_;
  std::shared_ptr<comm::Recorder> recorder_;
  int64_t made_ = 0;      ///< iterations of this run
  double together_s_ = 0; ///< this rank's clock when all ranks began the trace
  bool tracing_ = false, written_ = false;
  std::vector<Step> steps_;
};

} // namespace pentatron::trainer
