#include "pentatron/trainer/tracer.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "pentatron/base/atomic_file.h"
#include "pentatron/base/error.h"
#include "pentatron/base/format.h"
#include "pentatron/base/log.h"
#include "pentatron/comm/collectives.h"
#include "pentatron/comm/gather_text.h"
#include "pentatron/parallel/pipeline/measured.h"
#include "pentatron/parallel/pipeline/schedule/draw.h"
#include "pentatron/parallel/pipeline/schedule/text.h"
#include "pentatron/trainer/run_files.h"

namespace pentatron::trainer {

namespace {

TraceSlice slice_of(const comm::RecordedOperation& operation) {
  return {.name = fmt::format("{} {}", operation.group, operation.call),
          .category = "communication",
          .start_s = operation.start_s,
          .end_s = operation.end_s,
          .notes = {{"group", operation.group},
                    {"operation", operation.call},
                    {"bytes", operation.bytes},
                    {"sent_bytes", operation.sent_bytes},
                    {"waited_us", 1e6 * (operation.end_s - operation.wait_s)}}};
}

TraceSlice wait_of(const comm::RecordedOperation& operation) {
  TraceSlice slice = slice_of(operation);
  slice.category = "wait";
  slice.start_s = operation.wait_s;
  return slice;
}

const char* meaning(pipeline::ActionKind kind) {
  switch (kind) {
  case pipeline::ActionKind::kForward:
    return "forward";
  case pipeline::ActionKind::kBackward:
    return "backward";
  case pipeline::ActionKind::kBackwardInput:
    return "input gradient";
  case pipeline::ActionKind::kOverlap:
    return "forward and backward";
  default:
    return "weight gradient";
  }
}

} // namespace

Tracer::Tracer(Options options, comm::ParallelGroups groups,
               std::shared_ptr<comm::Recorder> recorder)
    : options_(std::move(options)), groups_(std::move(groups)), recorder_(std::move(recorder)) {}

StepTimes* Tracer::begin(int64_t iteration) {
  ++made_;
  const ProfilingConfig& p = options_.profiling;
  if (!p.trace || made_ < p.trace_start || made_ >= p.trace_start + p.trace_steps) return nullptr;
  if (made_ == p.trace_start) {
    comm::barrier(groups_.world());
    together_s_ = monotonic_s();
  }
  tracing_ = true;
  recorder_->enable(true);
  steps_.push_back({.iteration = iteration, .start_s = monotonic_s()});
  return &steps_.back().times;
}

void Tracer::end() {
  if (!std::exchange(tracing_, false)) return;
  recorder_->enable(false);
  steps_.back().end_s = monotonic_s();
  if (std::ssize(steps_) == options_.profiling.trace_steps) write();
}

void Tracer::finish() {
  if (!options_.profiling.trace || written_) return;
  if (steps_.empty()) {
    log::shared_warning("no trace was written: the run had {}, but profiling.trace_start={}",
                        counted(made_, "iteration"), options_.profiling.trace_start);
    return;
  }
  write();
}

/// What to add to this rank's times. Processes of one machine share the clock; one that was another
/// at the barrier is another machine's, and the barrier tells by how much.
double Tracer::clock_shift() const {
  const at::Tensor own = at::full({1}, together_s_, at::kDouble);
  const at::Tensor all = comm::all_gather(own, 0, groups_.world());
  const double first = *all.const_data_ptr<double>();
  return std::abs(first - together_s_) > 1 ? first - together_s_ : 0;
}

std::vector<TraceSlice> Tracer::compute_slices() const {
  std::vector<TraceSlice> slices;
  for (const Step& step : steps_) {
    for (const Phase& phase : step.times.phases)
      slices.push_back({phase.name, "phase", phase.start_s, phase.end_s});
    for (const auto& [action, start, end] : step.times.passes) {
      if (!pipeline::is_compute(action.kind)) continue;
      slices.push_back({pipeline::to_text(action),
                        meaning(action.kind),
                        start,
                        end,
                        {{"stage", action.stage}, {"microbatch", action.microbatch}}});
      if (action.kind == pipeline::ActionKind::kOverlap) {
        slices.back().notes["second_stage"] = action.second_stage;
        slices.back().notes["second_microbatch"] = action.second_microbatch;
      }
    }
  }
  return slices;
}

void Tracer::write() {
  written_ = true;
  const double shift = clock_shift();
  std::vector<TraceSlice> iterations, waits, communication;
  for (const Step& step : steps_)
    iterations.push_back(
        {fmt::format("iteration {}", step.iteration), "iteration", step.start_s, step.end_s});
  for (const comm::RecordedOperation& operation : recorder_->take()) {
    communication.push_back(slice_of(operation));
    if (operation.wait_s < operation.end_s) waits.push_back(wait_of(operation));
  }
  std::vector<TraceLane> lanes;
  for (const auto& [name, slices] : {std::pair{"iterations", std::move(iterations)},
                                     {"compute", compute_slices()},
                                     {"waits", std::move(waits)},
                                     {"communication", std::move(communication)}}) {
    for (TraceLane& lane : without_overlap(name, slices)) {
      for (TraceSlice& slice : lane.slices) {
        slice.start_s += shift;
        slice.end_s += shift;
      }
      lanes.push_back(std::move(lane));
    }
  }
  const int rank = groups_.world().rank();
  const std::vector<std::string> all =
      comm::gather_text(dump_json(trace_events(rank, groups_.describe(), lanes)), groups_.world());

  std::vector<pipeline::Interval> passes = steps_.back().times.passes;
  for (pipeline::Interval& pass : passes) {
    pass.start += shift;
    pass.end += shift;
  }
  const pipeline::Timeline timeline =
      pipeline::gather_timeline(options_.schedule, passes, groups_.pp());
  if (rank != 0) return;
  std::vector<Json> processes;
  for (const std::string& events : all) processes.push_back(parse_json(events, "a rank's trace"));
  try {
    const std::filesystem::path file = options_.folder / kTraceFile;
    write_file_atomically(file, chrome_trace(processes));
    log::info("trace of {} in {}", counted(std::ssize(steps_), "iteration"), file.string());
    if (groups_.pp().size() == 1) return;
    const std::string title =
        fmt::format("{}, iteration {}, measured", options_.schedule, steps_.back().iteration);
    write_file_atomically(options_.folder / kPipelinePlotFile,
                          draw_svg(timeline, {.title = title, .unit = "s"}));
  } catch (const Error& error) { // a full disk ends no run
    log::warning("the trace is incomplete: {}", error.what());
  }
}

} // namespace pentatron::trainer
